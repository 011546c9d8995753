"""Names of files and folders that hold secrets or run by themselves: refused under every root.

A root that is such a folder itself was named on purpose and is let in. Names are compared as the
laxest file system would compare them: without regard to case, to composed or decomposed accents,
or to invisible characters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

_NAMES: Final = frozenset(
    {
        # keys, passwords and tokens
        *(
            ".ssh",
            ".gnupg",
            ".aws",
            ".azure",
            ".kube",
            ".docker",
            ".password-store",
            ".vault-token",
        ),
        *(".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".git-credentials"),
        *(".gitconfig", ".htpasswd", ".env", ".envrc", ".authinfo", ".s3cfg", ".boto", ".gem"),
        *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"),
        *("keychains", "keyrings", ".terraformrc", "credentials.tfrc.json"),
        # what a shell runs when it starts or ends
        *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
        *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc"),
        *(".login", ".logout", ".inputrc", ".xinitrc", ".xprofile", ".xsession"),
        # a folder in which macOS finds every file by its number
        ".vol",
    }
)
_PATTERNS: Final = (
    *(".env.*", ".*history", "*.keychain", "*.keychain-db", "*.kdbx", "*.pem", "*.key", "*.p12"),
    *("*.pfx", "*.jks", "*.keystore", "*.ppk"),
)
_INSIDE: Final = (
    # (a folder, what is refused anywhere below it)
    ("*.git", frozenset({"config", "config.worktree", "hooks", "credentials"})),
    (".hg", frozenset({"hgrc"})),
    (".config", frozenset({"fish", "gh", "gcloud", "git", "op", "rclone"})),
    (".cargo", frozenset({"credentials", "credentials.toml"})),
    (".m2", frozenset({"settings.xml"})),
)


def private_part(parts: Sequence[str], above: str = "") -> str | None:
    """The first part of a path that is refused, or None.

    ``parts`` are the path's names below the root; ``above`` is the root's own last name, which is
    no reason to refuse, but tells that ``config`` below it is a repository's.
    """
    folders = [folded(above)] if above else []
    for part in parts:
        name = folded(part)
        if name in _NAMES or any(fnmatchcase(name, pattern) for pattern in _PATTERNS):
            return part
        for folder, inside in _INSIDE:
            if name in inside and any(fnmatchcase(above, folder) for above in folders):
                return part
        folders.append(name)
    return None


def folded(name: str) -> str:
    """The name as file systems compare it that ignore case, accents' form and invisible marks."""
    seen = "".join(
        c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf"
    )
    return unicodedata.normalize("NFKC", seen.casefold()).rstrip(" .")
