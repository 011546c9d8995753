"""Ordinary names of secrets in the forms in which they are written, and what is no secret."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mlx_tools.messages import ToolSpec
from mlx_tools.policy import collect_facts
from mlx_tools.policy.redact import Redactor, find_secrets
from mlx_tools.policy.secret_kinds import TABLE
from tests.policy.secret_samples import ALNUM, HEX, drawn, filled
from tests.tables import table

REDACTOR = Redactor()

NAMES = (  # noqa: SIM905
    "ADMIN_TOKEN SESSION_TOKEN NOTION_TOKEN ENCRYPTION_KEY AccountKey PAGERDUTY_API_KEY "
    "GITHUB_PAT X-Admin-Token Ocp-Apim-Subscription-Key LANDING_PAGE_API_KEY "
    "HOMEPAGE_PASSWORD AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET "
    "AZURE_STORAGE_KEY SharedAccessKey COSMOS_MASTER_KEY GCP_SERVICE_KEY "
    "GOOGLE_MAPS_API_KEY FIREBASE_SERVER_KEY CF_API_TOKEN HCLOUD_TOKEN LINODE_CLI_TOKEN "
    "VULTR_API_KEY DIGITALOCEAN_ACCESS_TOKEN OS_PASSWORD IBMCLOUD_API_KEY "
    "OCI_KEY_PASSPHRASE OPENAI_API_KEY WANDB_API_KEY HF_TOKEN TWILIO_AUTH_TOKEN "
    "STRIPE_SECRET_KEY PAYPAL_CLIENT_SECRET SLACK_SIGNING_SECRET DISCORD_BOT_TOKEN "
    "JIRA_API_TOKEN CI_JOB_TOKEN NPM_AUTH_TOKEN TWINE_PASSWORD DOCKERHUB_TOKEN "
    "CODECOV_TOKEN SENTRY_AUTH_TOKEN DD_APP_KEY NEW_RELIC_LICENSE_KEY VAULT_TOKEN "
    "CONSUL_HTTP_TOKEN TF_TOKEN_app_terraform_io ALGOLIA_ADMIN_KEY PLAID_SECRET "
    "ZENDESK_API_TOKEN MINIO_ROOT_PASSWORD SNYK_TOKEN AZURE_DEVOPS_EXT_PAT "
    "TELEGRAM_BOT_TOKEN SHOPIFY_API_SECRET SPLUNK_HEC_TOKEN MAILGUN_SMTP_PASSWORD "
    "ROLLBAR_ACCESS_TOKEN CLOUDINARY_API_SECRET PUSHER_APP_SECRET DJANGO_SECRET_KEY "
    "SECRET_KEY_BASE RAILS_MASTER_KEY JWT_SECRET NEXTAUTH_SECRET COOKIE_SECRET "
    "SESSION_SECRET POSTGRES_PASSWORD MYSQL_ROOT_PASSWORD PGPASSWORD REDIS_PASSWORD "
    "MONGO_PWD SMTP_PASS BORG_PASSPHRASE keystorePassword WEBHOOK_SECRET SIGNING_KEY "
    "HMAC_KEY PresharedKey wpa_psk db.password spring.datasource.password rootpw_password "
    "bindPassword clientSecret accessToken refresh_token apiKey authToken apikey "
    "authtoken dbpassword appSecret encryptionKey2 TOKEN_PROD API_KEY_1 API_TOKENS "
    "csrf_token page_access_token monkeyToken MONKEY_API_KEY ACCOUNT_TOKEN MIN_KEY_SECRET "
    "MAX_API_KEY X-Api-Key X-Auth-Token X-Vault-Token Private-Token X-CSRF-Token "
    "X-Shopify-Access-Token X-Goog-Api-Key X-Amz-Security-Token x-functions-key api-key "
    "X-Gitlab-Token DD-API-KEY "
).split()

FORMS = (
    *("{}={}", "{}: {}", '"{}": "{}"', "export {}='{}'", '{} = "{}"', "{} => '{}'", "--{} {}"),
    *("> {}: {}\r\n", "curl -H '{}: {}' https://example.com/", "-e {}={} image", "ENV {} {}"),
    *("https://example.com/a?{}={}&page=2", "https://example.com/a?page=2&{}={}"),
    *("Endpoint=https://example.com/;{}={};Suffix=x", 'headers["{}"] = "{}"', "<{}>{}</a>"),
    *('<add key="{}" value="{}"/>', "- name: {}\n  value: {}", r"\"{}\": \"{}\""),
    '{{"name":"{}","value":"{}"}}',
)


def values(random: Random) -> tuple[str, ...]:
    return (
        drawn(random, HEX, 32),
        drawn(random, ALNUM, 26) + "0a9Z",
        f"{drawn(random, ALNUM, 84)}1b==",
    )


@table("name", NAMES)
def test_a_value_under_an_ordinary_name_is_found_in_every_form(name: str) -> None:
    random = Random(name)
    kinds = random.randrange(3)  # of one name a form has one of the values, of all names each
    for number, form in enumerate(FORMS, kinds):
        value = values(random)[number % 3]
        text = form.format(name, value)
        (found,) = find_secrets(text)
        assert text[found.start : found.end] == value, text


def check_every_split(text: str) -> None:
    whole = REDACTOR.redact(text).text
    for cut in range(len(text) + 1):
        stream = REDACTOR.stream()
        assert stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.close() == whole


@table(("form", "name"), list(zip(FORMS, NAMES, strict=False)))
def test_it_is_so_at_every_split(form: str, name: str) -> None:
    check_every_split(form.format(name, values(Random(name))[1]) + "\nand more")


@table("name", NAMES)
def test_it_does_not_go_out_with_a_call(name: str) -> None:
    network = ToolSpec("fetch_url", effects=frozenset({"network"}))
    value = values(Random(name))[1]
    for arguments in (
        {"url": f"https://example.com/a?{name}={value}&page=2"},
        {"url": f"https://example.com/a%3F{name}%3D{value}"},
        {"headers": {name: value}},
        {"body": f'{{"{name}": "{value}"}}'},
    ):
        assert collect_facts(network, arguments).secrets, arguments


LINES = (
    # command lines
    *("curl -uann:{p} https://example.com", "curl --user  'ann:{p}' https://example.com"),
    *("curl -u {t}: https://example.com", 'curl --user "{t}:" https://example.com'),
    *("curl --user ann:'{p}' -X PATCH", 'curl --user "{{ann}}":"{{{p}}}" https://example.com'),
    *("mysql -u root -p{p} shop", "mysqldump -uroot -p'{p}' shop", "sshpass -p {p} ssh a@b"),
    *("docker login -u ann -p {p}", "docker login --password {p} -u ann", "redis-cli -a {p} ping"),
    *("set -gx API_KEY {t}", "set -x API_KEY {t}"),
    # settings
    *("requirepass {p}", "bindpw {p}", "wpa_psk={p}", '  psk="{p}"', "[pypi]\npassword = {p}"),
    *("- name: DB_PASSWORD\n  value: {p}", "<password>{p}</password>", "BASIC_AUTH=ann:{p}"),
    *('<entry key="db.password">{p}</entry>', "senha: {p}", "export FOO_SECRET={p}&39"),
    # code
    *('let secret: string = "{t}";', 'const KEY: &str = "{t}";', "API_KEY: str = '{t}'"),
    *("IDENTIFIED BY '{p}'", "CREATE USER ann WITH PASSWORD '{p}';"),
    "ALTER USER ann PASSWORD '{p}'",
    # connection strings and URLs
    "jdbc:postgresql://db/x?user=ann&password={p}&ssl=true",
    "jdbc:oracle:thin:ann/{p}@db:1521:x",
    *("jdbc:sqlserver://db;user=ann;password={p};encrypt=true", "Server=db;Uid=ann;Pwd={p};"),
    *('"Server=db;Password={p};Encrypt=true"', "Driver={{ODBC}};UID=ann;PWD={p}"),
    *("https://{t}@github.com/ann/a.git", "SENTRY_DSN=https://{t}@o1.example.com/4"),
    # prose, and values of another shape
    *("My password is {p}", "The token is {t}", "SNYK_TOKEN={u}", "twitterToken: {d}-{t}"),
    *("sourcegraph: {t}", "SUMO_ACCESS_ID={t}", 'api_key: "{t};'),
)
"""``p`` is a password, ``t`` a token, ``u`` a UUID, ``d`` digits that begin as a year does."""


@table("line", LINES)
def test_what_is_ordinarily_written_is_found_at_every_split(line: str) -> None:
    random = Random(line)
    values = {"p": "Tr0ub4dor", "t": drawn(random, ALNUM, 22) + "4t", "d": "209592229671192"}
    values["u"] = "12345678-ABCD-ABCD-ABCD-1234567890AB"
    text = line.format(**values)
    check_every_split(text)
    for name, value in values.items():
        assert value not in REDACTOR.redact(text).text or f"{{{name}}}" not in line, text


HASH = "8f14e45fceea167a5a36dedd4bea2543"
NONE = (
    # code
    *("token = next(tokens)", "sorted(rows, key=lambda x: x[1])", "for key, value in d.items():"),
    *("key = f'{prefix}:{name}:v2'", "token = self.lexer.token()", "api_key = get_api_key(env)"),
    *("password: str", "api_key: Optional[str] = None", "token: SecretStr", "secret: bytes | None"),
    *("if token == Token.NUMBER:", "key = kwargs.pop('key2', None)"),
    *("auth = HTTPBasicAuth(a1, b2)", "raise KeyError(key)", "tokens = tokenizer.encode(text)"),
    *("session = requests.Session()", "password = getpass.getpass()"),
    *("assert token.type == 'NAME'", "pwd = os.getcwd()", 'x["key"] = sha256(data).hexdigest()'),
    *("cache.get(key, default=None)", "def f(key: K2) -> V2:", "secret = base64.b64decode(s1)"),
    *("self.token = self.config.token2", "token=token, key=key"),
    # references to what stands elsewhere
    *("API_KEY=$API_KEY", "token: ${{ secrets.GITHUB_TOKEN }}", "api_key = os.environ['API_KEY2']"),
    *("key: process.env.API_KEY_V2", 'System.getenv("ADMIN_TOKEN1")', "TOKEN=$(cat /run/token1)"),
    *("password: !vault db/pass1", "secretKeyRef: api-secrets", "ADMIN_TOKEN={{ admin_token }}"),
    "token = vault.read('secret/data/app1')",
    # placeholders
    *("API_KEY=<your-api-key>", "TOKEN=your-token-here", 'password = "changeme123"'),
    *("key: XXXXXXXX", "ADMIN_TOKEN=...", "API_KEY=sk-...", "SECRET_KEY=replace-me"),
    *("token: [redacted:token]", "PASSWORD=********", "x-api-key: YOUR_API_KEY"),
    "Authorization: Bearer <token>",
    # names of what is none
    *(f"primary_key: {HASH}", f"foreignKey={HASH}", f"cache_key = '{HASH}'", f"key_id: {HASH}"),
    *(f"public_key={HASH}", f"PublicKeyToken={HASH[:16]}", f"sort-key: {HASH}", f"keyId={HASH}"),
    *(f"nextPageToken: {HASH}", f"continuation_token={HASH}", f"https://a.io/?page_token={HASH}"),
    *(f"idempotency-key: {HASH}", f"partitionKey: {HASH}", f"token_type={HASH}"),
    *(f"key_path={HASH}", f"secret_name: {HASH}", f"secretArn={HASH}", f"session_name={HASH}"),
    *(f"kms_key_arn={HASH}", f"AWS_ACCESS_KEY_ID={HASH}", f"key_fingerprint: {HASH}"),
    *(f"GITHUB_SHA={HASH}", f"n_tokens={HASH}", f"token_endpoint={HASH}", f"passwordPolicy={HASH}"),
    *(f"STRIPE_PUBLISHABLE_KEY={HASH}", "token_count=128000", "max_tokens: 4096"),
    *("prompt_tokens = 1234567890", "num_keys=100"),
    # words that hold one
    *(f"keyboard={HASH}", f"monkey: {HASH}", f"tokenizer={HASH}", f"donkey='{HASH}'"),
    *(f"path={HASH}", f"author: {HASH}", f"bypass={HASH}", f"compass: {HASH}", f"passport={HASH}"),
    *(f"design: {HASH}", f"inside={HASH}", f"secretary: {HASH}", f"keyword={HASH}"),
    *(f"turkey: {HASH}", f"patch={HASH}", f"hockey={HASH}", f"whiskey: {HASH}", f"signal={HASH}"),
    *(f"authority: {HASH}", f"assess={HASH}"),
    # paths, addresses and what stands elsewhere
    *("PWD=/home/ann/app-2", "pwd=C:/Users/ann2", "passwd:x:1000:1000", "password: vault:kv/db1"),
    *("arn:aws:secretsmanager:us-east-1:123456789012:secret:db-AbCdEf", "build=20260301-1200"),
    *("docker run -u 1000:1000 app2", "curl -u $USER:$PASS https://example.com", "mysql -p shop"),
    *("docker login -u ann --password-stdin", "docker run -p 8080:80 app2", "--password PASSWORD"),
    *("https://ann@example.com/a.git", "<td>password</td><td>Field1</td>", "the key is F5"),
    *("let token: string = readToken(2);", "password: string = config.password2"),
    # docs
    "The token is sent with each request, see RFC6749.",
    *("Set `API_KEY` to the key of your account.", "key: value pairs, e.g. `sort: name`"),
    *("Press key: Ctrl+Shift+F5", "password (at least 8 characters)"),
    *("| token | string | the access token |", "token: a string of 32 hexadecimal digits"),
    *("public key: ssh-ed25519", "Tokens: 1,024 in, 2,048 out", "session: 2026-03-01T12:00:00Z"),
)


@table("text", NONE)
def test_what_is_none_is_left_alone(text: str) -> None:
    assert find_secrets(text) == (), text


# --- the table ------------------------------------------------------------------------------------

ENTRIES = [(group, entry) for group, entries in TABLE.items() for entry in entries]
DRAWS = 20


def lines(entry: dict[str, Any], column: str) -> list[str]:
    held: str | list[str] = entry[column]
    return [held] if isinstance(held, str) else held


def glued(words: str) -> list[str]:
    return words.replace("-", "_").split()


@table(("group", "entry"), ENTRIES)
def test_an_entry_finds_its_line_and_leaves_the_other(group: str, entry: dict[str, Any]) -> None:
    random = Random(1)
    for _ in range(DRAWS):
        for line in lines(entry, "finds"):
            text = filled(line, random)
            kinds = {one.kind for one in find_secrets(text)}
            assert entry["kind"] in kinds if "kind" in entry else kinds, text
        for line in lines(entry, "leaves"):
            text = filled(line, random)
            assert find_secrets(text) == (), text


@pytest.mark.parametrize("entry", TABLE["names"], ids=lambda entry: str(entry["kind"]))
def test_every_name_is_found_however_it_is_written(entry: dict[str, Any]) -> None:
    random = Random(2)
    for name in glued(f"{entry['words']} {entry['whole']}"):
        camel = name.title().replace("_", "")
        for written in (name.upper(), camel, "my" + camel, name.replace("_", "-"), f"x.{name}s"):
            value = f"{drawn(random, ALNUM, 20)}4t{drawn(random, ALNUM, 10)}"
            text = f'{written}="{value}"'
            shown = Redactor().redact(text)
            assert shown.text == f'{written}="[redacted:{entry["kind"]}]"', text


@pytest.mark.parametrize("entry", TABLE["not_names"], ids=lambda entry: str(entry["about"]))
def test_no_name_that_is_not_secret_is_found(entry: dict[str, Any]) -> None:
    random = Random(3)
    names = [
        *glued(entry.get("names", "")),
        *(f"api_key_{last}" for last in glued(entry.get("last", ""))),
    ]
    for name in names:
        camel = name.title().replace("_", "")
        for written in (name.upper(), camel, "my" + camel, name.replace("_", "-"), f"x.{name}s"):
            text = f'{written}="{drawn(random, ALNUM, 20)}4t{drawn(random, ALNUM, 10)}"'
            assert find_secrets(text) == (), text
