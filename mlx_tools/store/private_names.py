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
        # what calls replaced and deleted, for undo: no model sees it
        ".mlx-tools-undo",
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

FOLDERS: Final = tuple(folder for folder, _ in _INSIDE)
"""Folders within which some names are private that are not elsewhere, as patterns."""

# What may be read and not changed: it decides what other programs run, or what this one may do.
_UNCHANGED: Final = frozenset(
    {
        # A file .git, or .git/commondir, sends git to a configuration anywhere, which names
        # programs to run. NTFS has git~1 as another name of .git.
        *(".git", "git~1", ".hg", ".svn", ".bzr", ".jj", ".husky", ".direnv"),
        # desktops, editors, debuggers, interpreters and terminals run what they find in these
        *(".config", ".local", "launchagents", "launchdaemons", ".vscode", ".idea", ".vim"),
        *(".vimrc", ".gvimrc", ".exrc", ".nvimrc", ".emacs", ".emacs.d", ".dir-locals.el"),
        *(".gdbinit", ".lldbinit", ".pdbrc", ".pythonrc", ".pythonrc.py", ".irbrc", ".pryrc"),
        *(".rprofile", ".renviron", ".sqliterc", ".psqlrc", ".curlrc", ".wgetrc", ".mailcap"),
        *(".tmux.conf", ".screenrc", ".forward", ".procmailrc", ".pam_environment", ".xsessionrc"),
        *(".xserverrc", ".mavenrc", ".yarnrc", ".yarnrc.yml", ".condarc", ".gemrc"),
        *("sitecustomize.py", "usercustomize.py"),
        "mlx-tools.toml",
    }
)
_UNCHANGED_PATTERNS: Final = ("*.pth",)
_UNCHANGED_INSIDE: Final = (
    ("*.git", frozenset({"commondir", "gitdir", "head", "info", "modules", "worktrees"})),
    ("application support", frozenset({"mlx-tools"})),
)

# Characters that some file systems leave out when they compare names, and that are not in
# category Cf: the rest of Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt).
_IGNORED: Final = frozenset(
    (
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0x2065),
        *(*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9)),
        *range(0xE0000, 0xE1000),
    )
)


def private_part(parts: Sequence[str], above: str = "", *, writing: bool = False) -> str | None:
    """The first part of a path that is refused, or None.

    ``parts`` are the path's names below the root; ``above`` is the root's own last name, which is
    no reason to refuse, but tells that ``config`` below it is a repository's. For ``writing``, what
    may be read and not changed is refused too.
    """
    names = _NAMES | _UNCHANGED if writing else _NAMES
    patterns = _PATTERNS + _UNCHANGED_PATTERNS if writing else _PATTERNS
    inside_of = _INSIDE + _UNCHANGED_INSIDE if writing else _INSIDE
    folders = [folded(above)] if above else []
    for part in parts:
        name = folded(part)
        if name in names or any(fnmatchcase(name, pattern) for pattern in patterns):
            return part
        for folder, inside in inside_of:
            if name in inside and any(fnmatchcase(above, folder) for above in folders):
                return part
        folders.append(name)
    return None


def folded(name: str) -> str:
    """The name as file systems compare it that ignore case, accents' form and invisible marks."""
    seen = "".join(
        c
        for c in unicodedata.normalize("NFKC", name)
        if unicodedata.category(c) != "Cf" and ord(c) not in _IGNORED
    )
    # NTFS has a file's streams after a colon: .git::$INDEX_ALLOCATION is the folder .git.
    kept = unicodedata.normalize("NFKC", seen.casefold()).partition(":")[0]
    return kept.rstrip(" .")
