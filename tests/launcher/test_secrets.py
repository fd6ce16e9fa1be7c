"""Secrets are masked in patches and messages, and what only looks like one is kept. All of them are invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher import secrets

LOWER, MIXED = "7f3a9c1e5b2d8064a7c9e1f3", "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5bC7d"
LETTERS = "NqVwYSVPHbDXpPdkhxEpyIgKpaUnArlXyk"

BEGIN, END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"


def joined(*parts: str) -> str:
    """A credential, in parts here so that no scanner takes this file to hold one."""
    return "".join(parts)


# The credential, and an added line of a file that has it.
SHAPES = {
    "AWS id": (joined("AK", "IAIOSFODNN7QXBMPLE"), "settings.py", "session('{}')"),
    "AWS secret": (MIXED, "run.sh", "aws configure set aws_secret_access_key = {}"),
    "AWS in an ini file": (MIXED, "aws.ini", "aws_secret_access_key = {}"),
    "GitHub": (joined("gh", "p_", MIXED[:36]), "a.py", "clone('{}')"),
    "GitHub, fine-grained": (joined("github", "_pat_", MIXED), "a.md", "with {} it works"),
    "GitLab": (joined("gl", "pat-", MIXED[:20]), "a.py", "clone('{}')"),
    "Slack": (joined("xo", "xb-123456789012-", MIXED[:24]), "a.py", "post('{}')"),
    "Slack's webhook": (joined("https://hooks.slack.com/", "services/T0A1B/B0A1B/", MIXED[:24]), "a.py", "p('{}')"),
    "Stripe": (joined("sk", "_live_", MIXED[:24]), "a.py", "pay('{}')"),
    "Stripe's test key": (joined("sk", "_test_", MIXED[:24]), "a.py", "pay('{}')"),
    "Twilio": (joined("S", "K", LOWER, LOWER[:8]), "a.py", "call('{}')"),
    "SendGrid": (joined("S", "G.", MIXED[:22], ".", MIXED, "abc"), "a.py", "mail('{}')"),
    "npm": (joined("npm", "_", MIXED[:36]), "a.txt", "//registry.npmjs.org/:_authToken={}"),
    "PyPI": (joined("pypi", "-AgEIcHlwaS5vcmc", MIXED, MIXED), "a.txt", "upload {}"),
    "JSON web token": (joined("ey", "JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.", MIXED), "a.py", "decode('{}')"),
    "Google": (joined("AI", "za", MIXED[:35]), "a.js", "map('{}')"),
    "Google's client secret": (joined("GOC", "SPX-", MIXED[:28]), "a.py", "oauth('{}')"),
    "Azure storage": (joined(MIXED, MIXED, "abcdEF=="), "a.py", "connect('AccountName=x;AccountKey={}')"),
    "Azure signature": (f"{MIXED}%3D", "a.py", "get('https://x.blob.core.windows.net/a?sv=2022&sig={}')"),
    "OpenAI": (joined("s", "k-proj-", MIXED), "a.py", "OpenAI('{}')"),
    "Anthropic": (joined("s", "k-ant-api03-", MIXED), "a.py", "Anthropic('{}')"),
    "Hugging Face": (joined("h", "f_", MIXED[:34]), "a.py", "login('{}')"),
    "Hugging Face, as it is": (joined("h", "f_", LETTERS), "a.py", "login('{}')"),
    "letters alone": (LETTERS, "a.py", "hf_token = '{}'"),
    "W&B's login": (LOWER + LOWER[:16], "a.py", "wandb.login(relogin=True, key='{}')"),
    "W&B": (LOWER + LOWER[:16], "a.py", "os.environ['WANDB_API_KEY'] = '{}'"),
    "Groq": (joined("gs", "k_", MIXED), "a.py", "Groq('{}')"),
    "Replicate": (joined("r", "8_", MIXED[:37]), "a.py", "Client('{}')"),
    "Databricks": (joined("da", "pi", LOWER, LOWER[:8]), "a.py", "connect('{}')"),
    "Discord": (joined("M", MIXED[:23], ".", MIXED[:6], ".", MIXED[:27]), "a.py", "bot('{}')"),
    "Telegram": (joined("123456789", ":", MIXED[:35]), "a.py", "bot('{}')"),
    "Mailchimp": (joined(LOWER, LOWER[:8], "-us12"), "a.py", "mail('{}')"),
    "bearer": (MIXED, "a.sh", "curl -H 'Authorization: Bearer {}' https://x"),
    "basic": ("dXNlcjpwYXNzd29yZA==", "a.sh", "curl -H 'Authorization: Basic {}' https://x"),
    "header": (MIXED, "a.py", "headers = {{'X-Api-Key': '{}'}}"),
    "address": ("hunter2hunter2", "a.py", "connect('postgresql://me:{}@db.example.org:5432/x')"),
    "address of redis": ("hunter2hunter2", "a.yaml", "url: redis://:{}@host:6379/0"),
    ".netrc": ("hunter2hunter2", "netrc.txt", "machine api.wandb.ai login user password {}"),
    ".netrc, on a line of its own": ("hunter2hunter2", "netrc.txt", "  password {}"),
    "password of letters": ("correcthorsebattery", "a.py", "password = '{}'"),
    "password of words": ("correct horse battery", "a.py", 'connect(passwd="{}")'),
    "password in YAML": ("hunter-two", "a.yaml", "  password: {}"),
    "with a type": (LOWER, "a.py", "api_key: str = '{}'"),
    "in a mapping": (LOWER, "a.py", "{{'client_secret': '{}'}}"),
    "as a default": (LOWER, "a.py", "os.getenv('JUDGE_TOKEN', '{}')"),
    "in a notebook": (LOWER, "a.ipynb", '"api_key = \\"{}\\"\\n",'),
    "in TypeScript": (LOWER, "a.ts", "const apiKey = `{}`"),
    "an option": (LOWER, "a.sh", "serve --api-key={} --port 8000"),
    "private key on a line": (f"MIIEvQIBADANBgkq\\n{MIXED}\\n", "a.json", f'"private_key": "{BEGIN}\\n{{}}{END}\\n",'),
}


def patch(name: str, *added: str) -> str:
    """A patch that adds a file with these lines."""
    lines = "".join(f"+{line}\n" for line in added)
    header = f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n"
    return f"{header}@@ -0,0 +1,{len(added)} @@\n{lines}"


@pytest.mark.parametrize("shape", SHAPES)
def test_credentials_are_masked_within_their_line(shape: str) -> None:
    credential, name, line = SHAPES[shape]
    before, after = line.format("\0").split("\0")
    masked = secrets.mask_patch(patch(name, "first = 1", line.format(credential), "last = 1"), {})
    first, present, last = masked.splitlines()[-3:]
    assert (first, last) == ("+first = 1", "+last = 1")
    assert credential not in present and credential[4:16] not in present and secrets.MASK in present
    assert present.endswith(after) and present[1:].startswith(before[:4]), present


NAMES = """HF_TOKEN WANDB_API_KEY OPENAI_API_KEY API_KEY AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN DB_PASSWORD PGPASSWORD
MYSQL_PWD SMTP_PASS SSH_PASSPHRASE SECRET DJANGO_SECRET_KEY CLIENT_SECRET MY_CREDENTIALS GITHUB_PAT OPENAI_KEY
NPM_AUTH JUDGE_API_KEY_2 wandb_api_key""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets_are_known_in_the_environment_in_files_and_in_commands(name: str) -> None:
    assert secrets.of_environment({name: LOWER}) == {LOWER: name}
    lines = [
        ("a.env", f"{name}={LOWER}"),
        ("a.sh", f"export {name}={LOWER}"),
        ("a.yaml", f"  {name}: {LOWER}"),
        ("a.toml", f'{name} = "{LOWER}"'),
        ("a.json", f'{{"{name}": "{LOWER}"}}'),
        ("a.py", f"os.environ['{name}'] = '{LOWER}'"),
        ("Dockerfile", f"ENV {name}={LOWER}"),
    ]
    for file, line in lines:
        assert LOWER not in secrets.mask_patch(patch(file, line), {}), line
    assert LOWER not in secrets.mask(f"python x.py {name}={LOWER} --{name.lower().replace('_', '-')} {LOWER}", {})


KEPT = {
    "a.py": """eos_token = tokenizer.eos_token
        api_key = os.environ["OPENAI_API_KEY2"]
        pad_token = "<|reserved_special_token_128009|>"
        tokenizer_path = "models/gpt2-medium-355M"
        max_tokens, token_id = 4096, 128009
        replace(mine, token='another')
        revision = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"
        digest = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
        run_id = "143f293000ba01fd"
        uuid = "123e4567-e89b-12d3-a456-426614174000"
        seed = 12345678901234567890
        cache_key = "9f86d081884c7d659a2feaa0c55ad015"
        CACHE_KEY = "9f86d081884c7d659a2feaa0c55ad015"
        PUBLIC_KEY = "9f86d081884c7d659a2feaa0c55ad015"
        key = "eval/reward_mean_64"
        bos_token = "BeginningOfTheSequence"
        from x import hf_AutoModelForCausalLMWithValueHead
        password = getpass.getpass()
        headers = {"Authorization": "Bearer " + token}
        headers = {"Authorization": f"Bearer {token2}"}
        url = f"https://{user}:{password}@host2"
        assert "-----BEGIN PRIVATE KEY-----" in text
        class APEvaluation2(Qwen2ForCausalLMWithValueHead2): pass
        from trainer_ext.rewards2 import normalized_reward_function_1""",
    "a.yaml": """api_key: ${oc.env:OPENAI_API_KEY2}
        revision: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b
        eos_token: <|eot_id_128009|>
        tokenizer: Qwen2.5-0.5B-Instruct
        max_tokens: 4096
        seed: 12345678901234567890""",
    "a.sh": """export HF_TOKEN=$(cat token2.txt)
        export WANDB_API_KEY="${WANDB_API_KEY2}"
        sha256sum -c 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08""",
    "a.md": """The token: a word or a part of one.
        Set the password in your settings, and the secret, too.""",
}


@pytest.mark.parametrize("name", KEPT)
def test_hashes_ids_numbers_and_references_are_kept(name: str) -> None:
    code = patch(name, *(line.strip() for line in KEPT[name].splitlines()))
    assert secrets.mask_patch(code, {}) == code


def test_a_private_key_is_masked_to_its_end_and_no_further() -> None:
    body = [MIXED, MIXED, "c2Vjcg=="]
    key = ["-----BEGIN OPENSSH PRIVATE KEY-----", *body, "-----END OPENSSH PRIVATE KEY-----"]
    masked = secrets.mask_patch(patch("key.txt", *key, "after = 1"), {})
    assert MIXED not in masked and "c2Vj" not in masked and masked.endswith(f"+{key[-1]}\n+after = 1\n")
    indented = secrets.mask_patch(
        patch("a.py", f"key = '{key[0]}\\n'", *(f"    '{line}\\n'" for line in body), "x = f(1)"), {}
    )
    assert MIXED not in indented and indented.endswith("+x = f(1)\n")
    # Its header is in the commit, and the patch changes the rest; a key without an end reaches to no other file.
    changed = f"diff --git a/k b/k\n--- a/k\n+++ b/k\n@@ -1,2 +1,2 @@\n {key[0]}\n-{MIXED[::-1]}\n+{MIXED}\n"
    other = patch("other.py", "abcdefghijklmnop", "y = 2")
    assert secrets.mask_patch(changed + other, {}) == changed.replace(MIXED, secrets.MASK) + other


def test_headers_and_binary_parts_of_a_patch_stay_and_the_environment_counts_in_hunks() -> None:
    binary = "diff --git a/launcher.bin b/launcher.bin\nGIT binary patch\nliteral 8\nlauncher+0Vr=5\n\n"
    code = patch("launcher/launcher.py", "call('launcher')")
    masked = secrets.mask_patch(binary + code, {"JUDGE_TOKEN": "launcher"})
    assert masked == binary + code.replace("('launcher')", "('***')")


CREDENTIALS_FILES = """.env .env.local prod.env .netrc _netrc .pgpass .npmrc .pypirc .git-credentials id_rsa server.pem
    deploy/id_ed25519 tls.key a.p12 credentials credentials.json gcp-service-account.json service_account_x.json
    secrets.yaml conf/secrets.toml hf_token token.txt .aws/config kubeconfig openai_api_key.txt
    client_secret_123.apps.googleusercontent.com.json"""
OTHER_FILES = """secrets.py test_secrets.py credentials.ts .env.example environment.py tokenizer.json public.pub
    special_tokens_map.json added_tokens.json tokens.txt keys.py password_strength.md aws/config.yaml key_value.csv
    id_rsa.pub secretary.txt"""


@pytest.mark.parametrize(("names", "expected"), [(CREDENTIALS_FILES, True), (OTHER_FILES, False)])
def test_files_named_like_credentials(names: str, expected: bool) -> None:
    assert [name for name in names.split() if secrets.is_credentials_file(Path(name)) is not expected] == []
