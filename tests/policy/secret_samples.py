"""Secrets made by rule: the right prefix, alphabet and length, drawn by a seeded generator.

None stands in the repository as it is, so that no scanner takes a test for a leak.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from random import Random
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import Final
from zlib import crc32

ALNUM: Final = ascii_letters + digits
HEX: Final = digits + "abcdef"
URL: Final = ALNUM + "-_"
UPPER: Final = ascii_uppercase + digits
LOWER: Final = ascii_lowercase + digits

ALPHABETS: Final = {
    "digit": digits,
    "hex": HEX,
    "upper": UPPER,
    "lower": LOWER,
    "alnum": ALNUM,
    "url": URL,
    "base64": ALNUM + "+/",
}
"""Those that a line of the table names."""

Make = Callable[[Random], str]


def drawn(random: Random, alphabet: str, size: int) -> str:
    return "".join(random.choices(alphabet, k=size))


def filled(line: str, random: Random) -> str:
    """A line of the table, with drawn characters where it names an alphabet."""
    return re.sub(
        r"\{([a-z0-9]+):([0-9]+)\}",
        lambda found: drawn(random, ALPHABETS[found[1]], int(found[2])),
        line.replace("{uuid}", "{hex:8}-{hex:4}-{hex:4}-{hex:4}-{hex:12}"),
    )


def _after(prefix: str, alphabet: str, size: int, end: str = "") -> Make:
    return lambda random: prefix + drawn(random, alphabet, size) + end


def _uuid(random: Random) -> str:
    return "-".join(drawn(random, HEX, size) for size in (8, 4, 4, 4, 12))


def _github(prefix: str) -> Make:
    """GitHub's: 30 characters, and their CRC-32 in six digits of base 62."""

    def make(random: Random) -> str:
        body = drawn(random, ALNUM, 30)
        number, check = crc32(body.encode()), ""
        base62 = digits + ascii_uppercase + ascii_lowercase
        for _ in range(6):
            number, place = divmod(number, 62)
            check = base62[place] + check
        return prefix + body + check

    return make


def _jwt(random: Random) -> str:
    def part(text: str) -> str:
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    claims = f'{{"sub":"{drawn(random, digits, 10)}","iat":{random.randrange(10**9)}}}'
    return ".".join((part('{"alg":"HS256"}'), part(claims), drawn(random, URL, 43)))


def pem(random: Random, name: str = "RSA PRIVATE KEY", lines: int = 12) -> str:
    """A block as of a private key, with random lines."""
    body = "\n".join(drawn(random, ALNUM + "+/", 64) for _ in range(lines))
    dashes = "-" * 5
    last = f"{drawn(random, ALNUM, 22)}==\n{dashes}END {name}{dashes}"
    return f"{dashes}BEGIN {name}{dashes}\n{body}\n{last}"


TOKENS: Final[dict[str, Make]] = {
    "adobe_secret": _after("p8e-", LOWER, 32),
    "age_secret_key": _after("AGE-SECRET-KEY-1", "023456789ACDEFGHJKLMNPQRSTUVWXYZ", 58),
    "airtable_token": lambda r: f"pat{drawn(r, ALNUM, 14)}.{drawn(r, HEX, 64)}",
    "alibaba_access_key": _after("LTAI", ALNUM, 20),
    "anthropic_key": _after("sk-ant-api03-", URL, 93, "AA"),
    "artifactory_token": _after("AKCp", ALNUM, 69),
    "atlassian_token": _after("ATATT3", URL, 180, "=1A2B3C4D"),
    "aws_access_key": _after("AKIA", ascii_uppercase + "234567", 16),
    "aws_mws_key": lambda r: "amzn.mws." + _uuid(r),
    "aws_session_token": _after("IQoJb3JpZ2lu", ALNUM + "+/", 300),
    "azure_client_secret": lambda r: drawn(r, ALNUM, 3) + "8Q~" + drawn(r, ALNUM, 34),
    "braintree_token": lambda r: (
        f"access_token$production${drawn(r, LOWER, 16)}${drawn(r, HEX, 32)}"
    ),
    "cargo_token": _after("cio", ALNUM, 32),
    "contentful_token": _after("CFPAT-", URL, 43),
    "databricks_token": _after("dapi", HEX, 32),
    "digitalocean_token": _after("dop_v1_", HEX, 64),
    "discord_bot_token": lambda r: (
        f"M{drawn(r, ALNUM, 23)}.{drawn(r, URL, 6)}.{drawn(r, ALNUM, 38)}"
    ),
    "discord_webhook": lambda r: (
        f"discord.com/api/webhooks/{drawn(r, digits, 18)}/{drawn(r, URL, 68)}"
    ),
    "docker_token": _after("dckr_pat_", URL, 27),
    "doppler_token": _after("dp.pt.", ALNUM, 43),
    "duffel_token": _after("duffel_live_", URL, 43),
    "dynatrace_token": lambda r: f"dt0c01.{drawn(r, UPPER, 24)}.{drawn(r, UPPER, 64)}",
    "easypost_key": _after("EZAK", ALNUM, 54),
    "facebook_token": _after("EAAM", ALNUM, 120),
    "figma_token": _after("figd_", URL, 40),
    "gcp_api_key": _after("AIza", URL, 35),
    "gcp_client_secret": _after("GOCSPX-", URL, 28),
    "gcp_oauth_token": _after("ya29.", URL, 120),
    "github_app_token": _github("ghs_"),
    "github_fine_grained_token": lambda r: (
        f"github_pat_{drawn(r, ALNUM, 22)}_{drawn(r, ALNUM, 59)}"
    ),
    "github_oauth_token": _github("gho_"),
    "github_personal_token": _github("ghp_"),
    "github_refresh_token": _github("ghr_"),
    "gitlab_runner_token": _after("glrt-", URL, 20),
    "gitlab_token": _after("glpat-", URL, 20),
    "grafana_token": lambda r: f"glsa_{drawn(r, ALNUM, 32)}_{drawn(r, HEX, 8)}",
    "groq_key": _after("gsk_", ALNUM, 52),
    "huggingface_token": _after("hf_", ascii_letters, 34),
    "jwt": _jwt,
    "langsmith_key": lambda r: f"lsv2_pt_{drawn(r, HEX, 32)}_{drawn(r, HEX, 10)}",
    "linear_key": _after("lin_api_", ALNUM, 40),
    "mailchimp_key": _after("", HEX, 32, "-us12"),
    "mailgun_key": _after("key-", HEX, 32),
    "new_relic_key": _after("NRAK-", UPPER, 27),
    "notion_token": _after("ntn_", ALNUM, 46),
    "npm_token": _after("npm_", ALNUM, 36),
    "nuget_key": _after("oy2", LOWER, 43),
    "nvidia_key": _after("nvapi-", URL, 64),
    "openai_key": _after("sk-proj-", URL, 120),
    "openrouter_key": _after("sk-or-v1-", HEX, 64),
    "password_hash": lambda r: "$2b$12$" + drawn(r, ALNUM + "./", 53),
    "perplexity_key": _after("pplx-", ALNUM, 48),
    "planetscale_token": _after("pscale_tkn_", URL, 43),
    "postman_key": lambda r: f"PMAK-{drawn(r, HEX, 24)}-{drawn(r, HEX, 34)}",
    "pulumi_token": _after("pul-", HEX, 40),
    "pypi_token": _after("pypi-AgEIc", URL, 150),
    "replicate_token": _after("r8_", ALNUM, 37),
    "rubygems_key": _after("rubygems_", HEX, 48),
    "sendgrid_key": lambda r: f"SG.{drawn(r, URL, 22)}.{drawn(r, URL, 43)}",
    "sendinblue_key": lambda r: f"xkeysib-{drawn(r, HEX, 64)}-{drawn(r, ALNUM, 16)}",
    "sentry_token": _after("sntryu_", HEX, 64),
    "shopify_token": _after("shpat_", HEX, 32),
    "slack_token": lambda r: (
        f"xoxb-{drawn(r, digits, 12)}-{drawn(r, digits, 13)}-{drawn(r, ALNUM, 24)}"
    ),
    "slack_webhook": lambda r: "/".join(
        (
            "hooks.slack.com/services",
            f"T{drawn(r, UPPER, 10)}",
            f"B{drawn(r, UPPER, 10)}",
            drawn(r, ALNUM, 24),
        )
    ),
    "square_token": _after("sq0atp-", URL, 22),
    "stripe_key": _after("sk_live_", ALNUM, 24),
    "stripe_webhook_secret": _after("whsec_", ALNUM, 32),
    "supabase_token": _after("sbp_", HEX, 40),
    "telegram_bot_token": lambda r: f"{r.randrange(10**8, 10**10)}:A{drawn(r, URL, 33)}z",
    "terraform_token": lambda r: f"{drawn(r, ALNUM, 14)}.atlasv1.{drawn(r, ALNUM, 67)}",
    "twilio_key": _after("SK", HEX, 32),
    "vault_token": _after("hvs.", URL, 90),
    "xai_key": _after("xai-", ALNUM, 80),
}
"""By the kind that each is to be found as."""


def _chosen(random: Random) -> str:
    return drawn(random, ascii_lowercase, 4) + drawn(random, digits, 3) + drawn(random, ALNUM, 4)


ASSIGNED: Final[tuple[str, ...]] = (
    'password = "{}"',
    "DB_PASSWORD={}",
    "export API_KEY={}",
    '{{"client_secret": "{}"}}',
    "api_key: '{}'",
    "Authorization: Bearer {}",
    "curl -H 'X-Api-Key: {}' example.com",
    "https://example.com/?token={}&page=2",
    "postgres://app:{}@db.internal:5432/app",
    "Server=db;User Id=app;Password={};",
    "--access-token {}",
    "<secret>{}</secret>",
    "Cookie: theme=dark; sessionid={}",
    "GITLAB_CREDENTIALS := {}",
)
"""Where a value stands that only its surroundings tell to be secret."""


def value(random: Random) -> str:
    """What no shape betrays: letters and digits."""
    return drawn(random, ALNUM, 20) + drawn(random, digits, 2) + drawn(random, ALNUM, 8)


SURROUNDINGS: Final = (
    "{}",
    "x {} y",
    '"{}"',
    "a={},",
    "({})",
    "\x1b[31m{}\x1b[0m",
    "see {}.\n",
    "`{}`",
)
