"""The kinds of secrets that are known by their own shape: a token with a prefix, or fixed parts.

A table, written from what the issuers say of their formats. Every kind has one or more *hints*,
literal texts without which it cannot occur: looking for those first is quick, and linear in the
text. Its pattern is linear by construction, which `tests/policy` holds it to: no repeat within a
repeat, and an endless repeat only at the end, where it cannot fail.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

LEFT: Final = r"(?:(?<![A-Za-z0-9])|(?<=[\[;0-9][0-9]m)|(?<=\[m))"
"""Where a token without a telling prefix may begin: after no letter or digit, but for the end of
a terminal's colour code."""
EDGE: Final = r"(?:(?<![\w.-])|(?<=[\[;0-9][0-9]m)|(?<=\[m))"
"""The same for a token that may hold full stops and dashes."""
RIGHT: Final = r"(?![A-Za-z0-9])"
"""Where a token of exact length ends."""
_UUID: Final = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
_AZURE_MARKS: Final = "AzFu|AzSe|AIoT|ACRD|ACDb|AzCa|APIM|AMC|ASt|ABa"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of secret: its name as placeholders show it, hints (one of them is in every such
    secret), and its shape."""

    name: str
    hints: tuple[str, ...]
    pattern: str


def _kind(name: str, hints: str, pattern: str) -> Kind:
    return Kind(name, tuple(hints.split()), pattern)


CLOUD: Final = (
    _kind(
        "aws_access_key",
        "AKIA ASIA ABIA ACCA A3T",
        rf"{LEFT}A(?:KIA|SIA|BIA|CCA|3T[A-Z0-9])[A-Z0-9]{{16}}{RIGHT}",
    ),
    _kind(
        "aws_session_token",
        "FwoGZXIvYXdz IQoJb3JpZ2lu",
        r"(?:FwoGZXIvYXdz|IQoJb3JpZ2lu)[A-Za-z0-9+/=]{80,}",
    ),
    _kind("aws_mws_key", "amzn.mws.", rf"amzn\.mws\.{_UUID}"),
    _kind(
        "aws_bedrock_key",
        "ABSK bedrock-api-key-",
        r"(?:ABSK[A-Za-z0-9+/=]{80,}|bedrock-api-key-[A-Za-z0-9+/=]{24,})",
    ),
    _kind("gcp_api_key", "AIza", r"AIza[\w-]{35,}"),
    _kind("gcp_oauth_token", "ya29. 1//0", rf"(?:ya29\.|{LEFT}1//0)[\w-]{{24,}}"),
    _kind("gcp_client_secret", "GOCSPX-", r"GOCSPX-[\w-]{20,}"),
    _kind("azure_client_secret", "Q~", rf"{EDGE}[\w.~-]{{3}}[0-9]Q~[\w.~-]{{31,34}}(?![\w~-])"),
    _kind(
        "azure_service_key",
        " ".join(_AZURE_MARKS.split("|")),
        rf"{LEFT}[A-Za-z0-9+/]{{33,76}}\+?(?:{_AZURE_MARKS})[A-Za-z0-9+/]{{5,8}}={{1,2}}",
    ),
    _kind("digitalocean_token", "doo_v1_ dop_v1_ dor_v1_", r"do[opr]_v1_[a-f0-9]{64,}"),
    _kind("alibaba_access_key", "LTAI", rf"{LEFT}LTAI[A-Za-z0-9]{{16,26}}{RIGHT}"),
    _kind("tencent_secret_id", "AKID", rf"{LEFT}AKID[A-Za-z0-9]{{32,36}}{RIGHT}"),
    _kind("cloudflare_origin_key", "v1.0-", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{146,}"),
    _kind(
        "yandex_key",
        "AQVN YCAJ t1. y0_",
        rf"{LEFT}(?:AQVN[\w-]{{35,}}|YCAJ[\w-]{{20,}}|t1\.[\w-]{{16,200}}=?\.[\w-]{{80,}}|y0_[\w-]{{50,}})",
    ),
    _kind("heroku_key", "HRKU-", r"HRKU-[\w-]{36,}"),
    _kind(
        "fly_token",
        "fo1_ fm1 fm2_",
        r"(?:fo1_[\w-]{43,}|fm1[ar]_[\w/+=-]{100,}|fm2_[\w/+=-]{100,})",
    ),
    _kind("scalingo_token", "tk-us-", r"tk-us-[\w-]{40,}"),
    _kind("netlify_token", "nfp_", r"nfp_[A-Za-z0-9]{36,}"),
    _kind("render_token", "rnd_", rf"{LEFT}rnd_[A-Za-z0-9]{{28,}}"),
    _kind("supabase_token", "sbp_ sb_secret_", r"(?:sbp_[a-f0-9]{40,}|sb_secret_[\w-]{20,})"),
    _kind("planetscale_token", "pscale_", r"pscale_(?:tkn|pw|oauth)_[\w.=-]{30,}(?<!\.)"),
    _kind("clickhouse_key", "4b1d", rf"{LEFT}4b1d[A-Za-z0-9]{{38}}{RIGHT}"),
    _kind("tailscale_key", "tskey-", r"tskey-[a-z]{2,12}-[A-Za-z0-9-]{16,}"),
    _kind("openshift_token", "sha256~", r"sha256~[\w-]{43,}"),
)

FORGES: Final = (
    _kind("github_personal_token", "ghp_", r"ghp_[A-Za-z0-9]{36,}"),
    _kind("github_oauth_token", "gho_", r"gho_[A-Za-z0-9]{36,}"),
    _kind("github_app_token", "ghu_ ghs_", r"gh[us]_[A-Za-z0-9]{36,}"),
    _kind("github_refresh_token", "ghr_", r"ghr_[A-Za-z0-9]{36,}"),
    _kind("github_fine_grained_token", "github_pat_", r"github_pat_\w{36,}"),
    _kind(
        "gitlab_token",
        "glpat- gldt- glcbt- glptt- glft- glsoat- glimt- glagent- gloas- glffct- glwt-",
        r"gl(?:pat|dt|cbt|ptt|ft|soat|imt|agent|oas|ffct|wt)-[\w-]{16,}(?:\.[\w.-]{9,})?",
    ),
    _kind(
        "gitlab_runner_token",
        "glrt- glrtr- GR1348941",
        r"(?:glrtr?-|GR1348941)[\w-]{20,}(?:\.[\w.-]{9,})?",
    ),
    _kind(
        "atlassian_token",
        "ATATT3 ATCTT3 ATBB",
        rf"(?:A(?:TATT|TCTT)3[\w=+/-]{{50,}}|{LEFT}ATBB[A-Za-z0-9]{{28,}})",
    ),
    _kind("npm_token", "npm_", rf"{LEFT}npm_[A-Za-z0-9]{{36,}}"),
    _kind("pypi_token", "pypi-AgE", r"pypi-AgE[\w-]{50,}"),
    _kind("rubygems_key", "rubygems_", r"rubygems_[a-f0-9]{48,}"),
    _kind("cargo_token", "cio", rf"{LEFT}cio[A-Za-z0-9]{{32}}{RIGHT}"),
    _kind("clojars_token", "CLOJARS_ clojars_", r"(?:CLOJARS|clojars)_[A-Za-z0-9]{60,}"),
    _kind("nuget_key", "oy2", rf"{LEFT}oy2[a-z0-9]{{43}}{RIGHT}"),
    _kind("docker_token", "dckr_pat_ dckr_oat_", r"dckr_[po]at_[\w-]{27,}"),
    _kind(
        "artifactory_token",
        "AKCp cmVmd",
        rf"{LEFT}(?:AKCp[A-Za-z0-9]{{69,}}|cmVmd[A-Za-z0-9]{{59,}})",
    ),
    _kind("sonar_token", "squ_ sqp_ sqa_", rf"{LEFT}sq[upa]_[A-Za-z0-9]{{40,}}"),
    _kind(
        "sourcegraph_token",
        "sgp_ slk_",
        rf"{LEFT}(?:sgp_|slk_)(?:local_|[A-Fa-f0-9]{{16}}_)?[A-Fa-f0-9]{{40,}}",
    ),
    _kind("circleci_token", "CCIPAT_ CCIPRJ_", r"CCIP(?:AT|RJ)_[A-Za-z0-9]{16,32}_[a-f0-9]{40,}"),
    _kind("buildkite_token", "bkua_", r"bkua_[a-f0-9]{40,}"),
    _kind(
        "harness_token",
        "pat. sat.",
        rf"{LEFT}[ps]at\.[\w-]{{22}}\.[A-Za-z0-9]{{24}}\.[A-Za-z0-9]{{20,}}",
    ),
    _kind("octopus_key", "API-", rf"{LEFT}API-[A-Z0-9]{{26}}{RIGHT}"),
)

MODELS: Final = (
    _kind("anthropic_key", "sk-ant-", r"sk-ant-[\w-]{20,}"),
    _kind("openrouter_key", "sk-or-", r"sk-or-(?:v[0-9]-)?[A-Za-z0-9]{32,}"),
    _kind(
        "openai_key",
        "sk-",
        rf"{LEFT}sk-(?:(?:proj|svcacct|admin|service|None)-[\w-]{{20,}}|[A-Za-z0-9]{{32,}})",
    ),
    _kind("huggingface_token", "hf_ api_org_", rf"{LEFT}(?:hf_|api_org_)[A-Za-z0-9]{{30,}}"),
    _kind("groq_key", "gsk_", rf"{LEFT}gsk_[A-Za-z0-9]{{40,}}"),
    _kind("xai_key", "xai-", rf"{LEFT}xai-[A-Za-z0-9]{{60,}}"),
    _kind("perplexity_key", "pplx-", r"pplx-[A-Za-z0-9]{40,}"),
    _kind("replicate_token", "r8_", rf"{LEFT}r8_[A-Za-z0-9]{{37,}}"),
    _kind("nvidia_key", "nvapi-", r"nvapi-[\w-]{60,}"),
    _kind("langsmith_key", "lsv2_", r"lsv2_[ps][tk]_[a-f0-9]{32}_[a-f0-9]{10,}"),
    _kind("elevenlabs_key", "sk_", rf"{LEFT}sk_[a-f0-9]{{48,}}"),
    _kind("tavily_key", "tvly-", r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{30,}"),
    _kind("pinecone_key", "pcsk_", r"pcsk_\w{60,}"),
    _kind("cerebras_key", "csk-", rf"{LEFT}csk-[a-z0-9]{{40,}}"),
)

CHAT: Final = (
    _kind(
        "slack_token",
        "xox xapp- xwfp-",
        r"(?:xoxe\.)?(?:xox[a-z]|xapp|xwfp)-(?:[A-Za-z0-9]{1,20}-)?[A-Za-z0-9-]{10,}",
    ),
    _kind(
        "slack_webhook",
        "hooks.slack.com/",
        r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/_-]{24,}",
    ),
    _kind(
        "discord_bot_token", ".", rf"{EDGE}[MNO][\w-]{{23,27}}\.[\w-]{{6}}\.[\w-]{{27,40}}(?![\w-])"
    ),
    _kind(
        "discord_webhook",
        "/api/webhooks/",
        r"discord(?:app)?\.com/api/webhooks/[0-9]{15,21}/[\w-]{50,}",
    ),
    _kind("telegram_bot_token", ":A", rf"{LEFT}(?:(?<=bot))?[0-9]{{5,16}}:A[\w-]{{34}}(?![\w-])"),
    _kind("telegram_bot_token", "bot", r"(?<=bot)[0-9]{5,16}:A[\w-]{34}(?![\w-])"),
    _kind(
        "teams_webhook", ".webhook.office.com/", r"\.webhook\.office\.com/webhookb2/[\w@/-]{80,}"
    ),
    _kind("twilio_key", "SK", rf"{LEFT}SK[0-9a-fA-F]{{32}}{RIGHT}"),
    _kind("sendgrid_key", "SG.", rf"{LEFT}SG\.[\w=-]{{16,32}}\.[\w=-]{{32,}}"),
    _kind("sendgrid_key", "SG.", rf"{LEFT}SG\.[\w=.-]{{66,}}(?<!\.)"),
    _kind(
        "sendinblue_key", "xkeysib- xsmtpsib-", r"x(?:key|smtp)sib-[a-f0-9]{64}-[A-Za-z0-9]{16,}"
    ),
    _kind("mailgun_key", "key-", rf"{LEFT}(?:pub)?key-[a-f0-9]{{32}}{RIGHT}"),
    _kind(
        "mailgun_signing_key",
        "-",
        rf"{LEFT}[a-h0-9]{{32}}-[a-h0-9]{{8}}-[a-h0-9]{{8}}(?![A-Za-z0-9-])",
    ),
    _kind("mailchimp_key", "-us", rf"{LEFT}[a-f0-9]{{32}}-us[0-9]{{1,2}}{RIGHT}"),
    _kind("resend_key", "re_", rf"{LEFT}re_[A-Za-z0-9]{{8}}_[A-Za-z0-9]{{20,}}"),
)

MONEY: Final = (
    _kind("stripe_key", "k_live_ k_test_ k_prod_", r"[srp]k_(?:live|test|prod)_[A-Za-z0-9]{10,}"),
    _kind("stripe_webhook_secret", "whsec_", r"whsec_[A-Za-z0-9+/=]{24,}"),
    _kind(
        "shopify_token",
        "shpat_ shpca_ shppa_ shpss_ shpua_ shptka_",
        r"shp(?:at|ca|pa|ss|ua|tka)_[A-Fa-f0-9]{32,}",
    ),
    _kind("square_token", "EAAA sq0", rf"(?:{LEFT}EAAA[\w=-]{{22,}}|sq0[a-z]{{3}}-[\w=-]{{22,}})"),
    _kind(
        "braintree_token",
        "access_token$",
        r"access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32,}",
    ),
    _kind(
        "flutterwave_key",
        "FLWSECK FLWPUBK",
        r"FLW(?:SECK|PUBK)(?:_TEST)?-?(?:[A-Ha-h0-9]{12,32})(?:-X)?",
    ),
    _kind(
        "plaid_token",
        "access-sandbox- access-development- access-production-",
        rf"access-(?:sandbox|development|production)-{_UUID}",
    ),
    _kind("easypost_key", "EZAK EZTK", rf"{LEFT}EZ[AT]K[A-Za-z0-9]{{54,}}"),
    _kind("shippo_token", "shippo_", r"shippo_(?:live|test)_[A-Fa-f0-9]{40,}"),
    _kind("duffel_token", "duffel_", r"duffel_(?:test|live)_[\w=-]{43,}"),
    _kind("lob_key", "live_ test_", rf"{LEFT}(?:live|test)_(?:pub_)?[a-f0-9]{{31,35}}{RIGHT}"),
)

SERVICES: Final = (
    _kind("databricks_token", "dapi", rf"{LEFT}dapi[a-f0-9]{{32}}(?:-[0-9])?{RIGHT}"),
    _kind("doppler_token", "dp.", rf"{LEFT}dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9_-]{{40,}}"),
    _kind("linear_key", "lin_", r"lin_(?:api|oauth|wh)_[A-Za-z0-9]{32,}"),
    _kind(
        "notion_token",
        "ntn_ secret_",
        rf"{LEFT}(?:ntn_[A-Za-z0-9]{{40,}}|secret_[A-Za-z0-9]{{43}}{RIGHT})",
    ),
    _kind("vault_token", "hvs. hvb. hvr.", rf"{LEFT}hv[sbr]\.[\w-]{{24,}}"),
    _kind(
        "vault_token",
        "s.",
        r"(?<![\w.])s\.(?=[A-Za-z]{0,22}[0-9][A-Za-z]{0,22}[0-9])[A-Za-z0-9]{24}(?![\w.])",
    ),
    _kind("terraform_token", ".atlasv1.", rf"{LEFT}[A-Za-z0-9]{{14}}\.atlasv1\.[\w=-]{{60,}}"),
    _kind("pulumi_token", "pul-", rf"{LEFT}pul-[a-f0-9]{{40,}}"),
    _kind("sentry_token", "sntrys_ sntryu_", r"sntry(?:s_eyJ[\w+/=.-]{60,}|u_[a-f0-9]{64,})"),
    _kind(
        "grafana_token",
        "glc_ glsa_ eyJrIjoi",
        rf"{LEFT}(?:glc_[A-Za-z0-9+/]{{32,}}={{0,3}}|glsa_[A-Za-z0-9]{{32}}_[A-Fa-f0-9]{{8}}|eyJrIjoi[A-Za-z0-9+/]{{60,}}={{0,3}})",
    ),
    _kind(
        "new_relic_key",
        "NRAK- NRII- NRJS- NRRA- NRAL",
        r"NR(?:AK-[A-Za-z0-9]{27,}|II-[\w-]{32,}|JS-[A-Fa-f0-9]{19,}|RA-[a-f0-9]{42,}|AL[A-Za-z0-9]{30,})",
    ),
    _kind("datadog_key", "ddp_ ddapp_", rf"{LEFT}dd(?:app?|p)_[A-Za-z0-9]{{34,}}"),
    _kind(
        "dynatrace_token", "dt0c01. dt0s01.", r"dt0[a-z][0-9]{2}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{64,}"
    ),
    _kind("honeycomb_key", "hcaik_ hcbik_ hcxik_", r"hc[a-z]ik_[a-z0-9]{32,}"),
    _kind("posthog_key", "phx_ phs_", rf"{LEFT}ph[xs]_[A-Za-z0-9]{{40,}}"),
    _kind("postman_key", "PMAK-", r"PMAK-[A-Fa-f0-9]{24}-[A-Fa-f0-9]{34,}"),
    _kind("prefect_key", "pnu_ pnb_", rf"{LEFT}pn[ub]_[A-Za-z0-9]{{36,}}"),
    _kind("readme_key", "rdme_", r"rdme_[a-z0-9]{60,}"),
    _kind("typeform_token", "tfp_", rf"{LEFT}tfp_[\w.=-]{{59,}}"),
    _kind("airtable_token", "pat", rf"{LEFT}pat[A-Za-z0-9]{{14}}\.[a-f0-9]{{64,}}"),
    _kind("contentful_token", "CFPAT-", r"CFPAT-[\w-]{40,}"),
    _kind("figma_token", "figd_ figu_", r"fig[du]_[\w-]{36,}"),
    _kind("facebook_token", "EAAM EAAC", rf"{LEFT}EAA[MC][A-Za-z0-9]{{80,}}"),
    _kind("facebook_token", "| %", rf"{LEFT}[0-9]{{15,16}}[|%][\w-]{{27,40}}(?![\w-])"),
    _kind(
        "authress_key",
        ".acc",
        r"(?:sc|ext|scauth|authress)_[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][A-Za-z0-9-]{10,32}\.[\w+/=-]{30,}",
    ),
    _kind("defined_networking_key", "dnkey-", r"dnkey-[\w=-]{26,}"),
    _kind("adobe_secret", "p8e-", r"p8e-[a-z0-9]{32,}"),
    _kind(
        "onepassword_token",
        "ops_eyJ A3-",
        rf"{LEFT}(?:ops_eyJ[\w+/=-]{{200,}}|A3-[A-Z0-9]{{6}}-(?:[A-Z0-9]{{11}}|[A-Z0-9]{{6}}-[A-Z0-9]{{5}})-[A-Z0-9]{{5}}-[A-Z0-9]{{5}}-[A-Z0-9]{{5}}{RIGHT})",
    ),
    _kind("infracost_key", "ico-", rf"{LEFT}ico-[A-Za-z0-9]{{32,}}"),
    _kind("frameio_token", "fio-u-", r"fio-u-[\w=-]{60,}"),
    _kind("maxmind_key", "_mmk", rf"{LEFT}[A-Za-z0-9]{{6}}_[A-Za-z0-9]{{29}}_mmk{RIGHT}"),
    _kind("intra42_secret", "s-s4t2", r"s-s4t2(?:ud|af)-[a-f0-9]{64,}"),
    _kind("settlemint_token", "sm_aat_ sm_pat_ sm_sat_", r"sm_[aps]at_[A-Za-z0-9]{16,}"),
    _kind("launchdarkly_key", "api- sdk- mob-", rf"{LEFT}(?:api|sdk|mob)-{_UUID}{RIGHT}"),
    _kind(
        "zapier_webhook",
        "hooks.zapier.com/",
        r"hooks\.zapier\.com/hooks/catch/[0-9]{4,12}/[A-Za-z0-9]{5,}",
    ),
    _kind("ubidots_token", "BBFF-", r"BBFF-[A-Za-z0-9]{30}"),
)

GENERAL: Final = (
    _kind("age_secret_key", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{58,}"),
    _kind(
        "jwt",
        "eyJ ey",
        rf"{EDGE}ey[A-Za-z0-9][\w-]{{8,4000}}\.ey[\w/-]{{8,4000}}\.(?:[\w/+-]{{10,4000}}={{0,2}})?",
    ),
    _kind("jwt", "ZXlK", r"(?<![A-Za-z0-9+/_-])ZXlK[A-Za-z0-9+/_-]{16,}={0,2}"),
    _kind(
        "jwt",
        "eyJ",
        rf"{EDGE}eyJ[\w-]{{8,2000}}\.[\w-]{{0,1000}}\.[\w-]{{0,100}}\.[\w-]{{16,4000}}\.[\w-]{{16,100}}",
    ),
    _kind(
        "password_hash",
        "$2a$ $2b$ $2y$ $5$ $6$ $y$ $7$ $argon2",
        r"\$(?:2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}|[56]\$(?:rounds=[0-9]{1,9}\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{43,}|y\$[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{1,86}\$[./A-Za-z0-9]{43,}|7\$[./A-Za-z0-9]{12,200}\$[./A-Za-z0-9]{43,}|argon2(?:id|i|d)\$v=[0-9]{1,3}\$m=[0-9]{1,9},t=[0-9]{1,9},p=[0-9]{1,9}\$[A-Za-z0-9+/]{8,100}\$[A-Za-z0-9+/]{16,})",
    ),
)

TOKEN_KINDS: Final = (*CLOUD, *FORGES, *MODELS, *CHAT, *MONEY, *SERVICES, *GENERAL)
"""All of them; where two meet, the one that comes first names what was found."""

CONTEXT_KINDS: Final = (
    *("private_key", "authorization_header", "aws_secret_key", "url_password", "password"),
    *("api_key", "token", "secret", "session_cookie", "private_jwk", "credential"),
)
"""Kinds that are known by what stands before them (`mlx_tools.policy.secret_context`)."""

PATH: Final = "path"
"""What a redacted folder is called, where paths are redacted too."""

KIND_NAMES: Final = frozenset({kind.name for kind in TOKEN_KINDS} | {*CONTEXT_KINDS, PATH})
"""Every name that a placeholder of ours can hold."""

LONGEST_HINT: Final = max(len(hint) for kind in TOKEN_KINDS for hint in kind.hints)


@cache
def compiled() -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, re.Pattern[str]], ...]]:
    """Every hint with the place of its kind, and the kinds' names and patterns.

    Compiled when first used, since it takes a while.
    """
    hints = tuple((hint, at) for at, kind in enumerate(TOKEN_KINDS) for hint in kind.hints)
    return hints, tuple((kind.name, re.compile(kind.pattern, re.ASCII)) for kind in TOKEN_KINDS)
