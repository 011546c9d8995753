"""Ways to make an ordinary program run, write or read something else, written as arguments.

Each is a list of words in which OUT stands for a file that must not come to be, SECRET for one that
must not be read, and LINK for a symbolic link to it that lies below the root.
"""

from __future__ import annotations

OPTIONS_WITH_A_FILE = (
    *("-o", "-O", "-T", "-f", "-m", "-M", "-X", "-D", "-C", "-S", "-I", "-P", "-t", "-g", "-r"),
    *("--output", "--output-file", "--outfile", "--temporary-directory", "--tmpdir", "--file"),
    *("--files0-from", "--files-from", "--from-file", "--to-file", "--exclude-from", "--config"),
    *("--include-from", "--random-source", "--reference", "--magic-file", "--rcfile", "--log-file"),
    *("--ignore-file", "--ignore-revs-file", "--contents", "--index-filter", "--pidfile"),
    *("--git-dir", "--work-tree", "--exec-path", "--namespace", "--super-prefix", "--template"),
    *("-fprint", "-fprint0", "-fls", "-files0-from", "--fromfile", "--gitfile", "--infofile"),
)
OPTIONS_WITH_A_PROGRAM = (
    *("--compress-program", "--use-compress-program", "--to-command", "--checkpoint-action=exec"),
    *("--rsh", "--rsh-command", "--pre", "--hostname-bin", "--open-files-in-pager", "--pager"),
    *("--upload-pack", "--receive-pack", "--exec", "--command", "--filter", "--eval", "--prompt"),
    *("--info-script", "--new-volume-script", "--rmt-command", "--editor", "--ssh-command"),
    *("-exec", "-execdir", "-ok", "-okdir", "-c", "-e", "-x", "-O", "-I"),
)
OPTIONS_ALONE = (
    *("-delete", "--delete", "--in-place", "-i.bak", "--paginate", "-p=", "--ext-diff", "--help"),
    *("--textconv", "--show-signature", "--no-index", "--search-zip", "--follow=name", "--compile"),
    *("--filters", "--batch", "--stdin", "--version", "--html-path", "--edit", "--interactive"),
    *("--recurse-submodules", "--submodule=diff", "--unsafe-paths", "--force", "--dereference"),
)
CONFIGURATION = (
    *("alias.x=!touch OUT", "core.pager=touch OUT", "core.fsmonitor=touch OUT", "core.editor=x"),
    *("diff.external=touch OUT", "core.sshCommand=touch OUT", "include.path=SECRET"),
    "core.hooksPath=x",
)
SPELLINGS = (
    ["–exec", "touch", "OUT", ";"],  # an en dash
    ["−o", "OUT"],  # a minus sign
    *(["—output=OUT"], ["﹣-output=OUT"], ["-‐output=OUT"]),
    ["--out=OUT"],  # abbreviated
    *(["--outp", "OUT"], ["--compress-prog=touch"], ["--files0=SECRET"]),
    ["-nooOUT"],  # bundled
    *(["-noOUT"], ["-rno", "OUT"], ["-laoOUT"], ["--", "-o", "OUT"], ["--", "--output=OUT"]),
    *(["--", "-exec", "touch", "OUT", ";"], ["-", "-o", "OUT"], ["--output", "--", "OUT"]),
    *(["--=OUT"], ["-\n-output=OUT"], ["--output\n=OUT"], [" --output=OUT"], ["--OUTPUT=OUT"]),
)
ELSEWHERE = (
    *(["SECRET"], ["LINK"], ["--", "SECRET"], ["--", "LINK"], ["../outside/secret.txt"]),
    *(["./../outside/secret.txt"], ["sub/../../outside/secret.txt"]),
    *(["sub/./..//../outside/secret.txt"], ["--", "../outside/secret.txt"]),
    *(["..%2foutside%2fsecret.txt"], ["../outside/*.txt"], ["*/../../outside/*"], ["/*/../SECRET"]),
    *(["file://SECRET"], ["@SECRET"], ["+SECRET"], ["<SECRET"], ["HEAD:../outside/secret.txt"]),
    *([":/../outside/secret.txt"], [":(top)../outside/secret.txt"], ["~/secret.txt"]),
    *(["$HOME/secret.txt"], ["${IFS}SECRET"], [".env"], ["./.env"], ["sub/../.env"], [".ENV"]),
    *([".e*"], [".git/config"], [".git/../.git/config"], ["HEAD:.env"], ["--", ".env"]),
    *(["/proc/self/environ"], ["/proc/1/root/SECRET"], ["/dev/fd/0"], ["/dev/tcp/127.0.0.1/9"]),
    ["/etc/passwd"],
)
SHELL = (
    *(["$(touch OUT)"], ["`touch OUT`"], [";", "touch", "OUT"], ["a.txt;touch OUT"]),
    *(["|", "touch", "OUT"], ["a.txt|touch OUT"], ["&&", "touch", "OUT"], ["&", "touch", "OUT"]),
    *([">", "OUT"], [">OUT"], ["a.txt", ">>", "OUT"], ["a.txt\ntouch OUT"], ["!touch OUT"]),
    *(["\\", "touch", "OUT"], ["--format=%G?"], ["--pretty=%GK"], ["--format=%(trailers)%G?"]),
    *(["LD_PRELOAD=OUT"], ["a.txt", "OUT"], ["a.txt", "a.txt", "OUT"]),
)


def escapes() -> list[list[str]]:
    """All of them, as lists of words that follow a program's ordinary arguments."""
    found: list[list[str]] = []
    for option in OPTIONS_WITH_A_FILE:
        for file in ("OUT", "SECRET"):
            joined = f"{option}={file}" if option.startswith("--") else f"{option}{file}"
            found += [[option, file], [joined]]
    for option in OPTIONS_WITH_A_PROGRAM:
        joined = f"{option}=touch OUT" if option.startswith("--") else f"{option}touch OUT"
        found += [[option, "touch", "OUT", ";"], [option, "touch OUT"], [joined]]
    found += [[option] for option in OPTIONS_ALONE]
    for setting in CONFIGURATION:
        found += [
            ["-c", setting],
            [f"-c{setting}"],
            [f"--config={setting}"],
            [f"--config-env={setting}"],
        ]
    return [*found, *SPELLINGS, *ELSEWHERE, *SHELL]
