#!/bin/sh
# What no test on Linux can settle, tried on a real Mac in about fifteen minutes.
#
#   sh scripts/mac_check.sh 2>&1 | tee mac_check.txt
#
# It makes .venv, changes nothing else outside a folder of its own, which it removes, and asks before
# what macOS may ask about. The report holds no name of yours, of your Mac or of your folders: please
# post it as it is.
#   --quick   leave out what needs a model, an answer or a look
#   --yes     take yes for an answer to every question
set -u
cd "$(dirname "$0")/.." || exit 2
[ "$(uname -s)" = Darwin ] || { echo "mac_check: this is for macOS"; exit 2; }

quick=no yes=no
for word in "$@"; do
  case $word in
    --quick) quick=yes ;;
    --yes) yes=yes ;;
    *) echo "mac_check: there is no $word (--quick, --yes)"; exit 2 ;;
  esac
done
PY=${PY:-.venv/bin/python}
MT=${MT:-.venv/bin/mlx-tools}
{ [ -x "$PY" ] && [ -x "$MT" ]; } || make setup || exit 2

T=$(mktemp -d "${TMPDIR:-/tmp}/mlx-mac.XXXXXX") && T=$(cd "$T" && pwd -P) || exit 2
trap 'rm -rf "$T"' EXIT
trap 'exit 130' INT TERM
# Models stay in the person's own cache; all else that is written goes to the folder of this script.
export MLX_TOOLS_CONFIG_DIR="$T/config" MLX_TOOLS_DATA_DIR="$T/data" MLX_TOOLS_STATE_DIR="$T/state"

: >"$T/held"
: >"$T/failed"
ok() { echo "$1" >>"$T/held"; printf 'ok    %s\n' "$1"; }
no() { echo "$1" >>"$T/failed"; printf 'FALSE %s: %s\n' "$1" "$2"; }
equal() { if [ "$2" = "$3" ]; then ok "$1"; else no "$1" "got '$2', expected '$3'"; fi; }
holds() { if grep -q -- "$2" "$3"; then ok "$1"; else no "$1" "$(tail -n 2 "$3" | tr '\n' ' ')"; fi; }
lacks() { if grep -q -- "$2" "$3"; then no "$1" "found $2"; else ok "$1"; fi; }
works() { # works WHAT COMMAND…
  what=$1
  shift
  if "$@" >"$T/output" 2>&1; then ok "$what"; else no "$what" "$(tail -n 2 "$T/output" | tr '\n' ' ')"; fi
}
agree() { # agree QUESTION: whether the person says yes
  [ "$yes" = no ] || return 0
  [ "$quick" = no ] || return 1
  (: </dev/tty) 2>/dev/null || return 1
  printf '%s [y/N] ' "$1" >/dev/tty
  read -r reply </dev/tty && [ "$reply" = y ]
}
tool() { # tool NAME ARGUMENTS ROOT: call a tool of ours, its output in a file
  "$MT" tools call "$1" "$2" --tools "$1" --root "$3" --approve always >"$T/output" 2>&1
}

# The report without the names of the person, of the machine and of the folders.
scrub() {
  "$PY" -u -c '
import getpass, os, re, socket, subprocess, sys
def printed(*words):
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
folders = {os.path.expanduser("~"): "~", os.getcwd(): "CHECKOUT", sys.argv[1]: "FOLDER"}
folders |= {os.path.realpath(name): label for name, label in folders.items()}
names = {getpass.getuser(), printed("id", "-F"), socket.gethostname(), socket.gethostname().split(".")[0]}
names |= {printed("scutil", "--get", key) for key in ("ComputerName", "LocalHostName", "HostName")}
names = sorted((n for n in names if len(n) > 2 and n not in ("root", "admin", "localhost")), key=len)
for line in iter(sys.stdin.readline, ""):
    for name in sorted(folders, key=len, reverse=True):
        if len(name) > 1:
            line = line.replace(name, folders[name])
    for name in reversed(names):
        line = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "NAME", line)
    sys.stdout.write(line)
' "$T"
}

section_machine() {
  echo "== 1 the machine"
  sw_vers
  sysctl -n machdep.cpu.brand_string hw.memsize iogpu.wired_limit_mb 2>/dev/null
  echo "open files: $(ulimit -n); terminal: ${TERM_PROGRAM:-?}; locale: ${LANG:-?}; shell: ${SHELL:-?}"
  csrutil status 2>/dev/null
  git rev-parse --short HEAD 2>/dev/null
  "$PY" -VV
  xcode-select -p >/dev/null 2>&1 && echo "command line tools: yes" || echo "command line tools: no"
}

profile() { # profile PROGRAM FOLDER [HIDDEN]: the profile that run_command uses
  "$PY" - "$@" <<'P'
import sys
from mlx_tools.plugins.command.rules import HiddenPaths
from mlx_tools.plugins.command.sandbox import SandboxView
from mlx_tools.plugins.command.seatbelt import build_profile
program, folder, *hidden = sys.argv[1:]
view = SandboxView(folder, [(folder, bool(hidden))], HiddenPaths(hidden, [], []), starts=bool(hidden))
print(build_profile(program, view, folder + "/tmp"))
P
}

section_sandbox() {
  echo "== 2 sandbox-exec"
  mkdir -p "$T/in" "$T/out.d" "$T/w/api"
  echo in >"$T/in/f"
  echo outside-text >"$T/out.d/f"
  echo hidden-text >"$T/w/api/.env"
  profile /bin/cat "$T/in" >"$T/profile" 2>"$T/errors" || no "the profile is written" "$(tail -n 1 "$T/errors")"
  confined="$(cat "$T/profile")"
  works "a program starts under the profile" sandbox-exec -p "$confined" /bin/cat "$T/in/f"
  sandbox-exec -p "$confined" /bin/cat "$T/out.d/f" >"$T/output" 2>&1
  lacks "a file outside is not read" outside-text "$T/output"
  if ! grep -q "the profile\|a program starts" "$T/held"; then
    echo "   which line is missing:"
    for line in '(allow file-read* (subpath "/"))' '(allow file-map-executable)' '(allow sysctl-read)' \
      '(allow mach-lookup)' '(allow process*)' '(allow ipc-posix*)' '(allow signal)' '(allow system*)'; do
      sandbox-exec -p "$confined$line" /bin/cat "$T/in/f" >/dev/null 2>&1 && echo "   it starts with $line"
    done
    log show --last 1m --predicate 'sender == "Sandbox"' --style compact 2>/dev/null | grep deny | tail -n 5
  fi
  profile /bin/sh "$T/w" "$T/w/api/.env" >"$T/profile" 2>/dev/null
  sandbox-exec -p "$(cat "$T/profile")" /bin/sh -c "mv $T/w/api $T/w/x; cat $T/w/x/.env $T/w/api/.env" >"$T/output" 2>&1
  lacks "a hidden file stays hidden if its folder is renamed" hidden-text "$T/output"
  "$MT" doctor --json >"$T/doctor.json" 2>/dev/null
  "$PY" - "$T/doctor.json" >"$T/output" 2>&1 <<'P'
import json, sys
for check in json.load(open(sys.argv[1]))["checks"]:
    print(check["name"], check["status"], check["detail"])
P
  holds "doctor says the same" "^sandbox ok" "$T/output"
}

section_commands() {
  echo "== 3 run_command"
  printf hello >"$T/in/a.txt"
  tool run_command '{"program":"cat","arguments":["a.txt"]}' "$T/in"
  holds "a program runs in the root" hello "$T/output"
  upper="$(dirname "$T/in")/IN"
  tool run_command '{"program":"ls","arguments":[]}' "$upper"
  holds "a root typed in another case" a.txt "$T/output"
  tool run_command '{"program":"ls","arguments":["/etc"]}' "$T/in"
  lacks "no folder outside the root" master.passwd "$T/output"
  git init -q "$T/in" 2>/dev/null
  tool run_command '{"program":"git","arguments":["status","--short"]}' "$T/in"
  holds "git, behind Apple's shim" a.txt "$T/output"
  for name in python3 make rg jq; do
    "$MT" tools call run_command "{\"program\":\"$name\",\"arguments\":[\"--version\"]}" --tools run_command \
      --root "$T/in" --commands "$name" --approve always >"$T/output" 2>&1
    printf '      %s: %s\n' "$name" "$(tail -n 1 "$T/output")"
  done
}

section_files() {
  echo "== 4 files"
  printf accents >"$T/in/café.txt"
  tool file_access '{"operation":"read","path":"CAFÉ.TXT"}' "$T/in"
  holds "a name in another case and with accents" accents "$T/output"
  printf private >"$T/in/.env"
  tool file_access '{"operation":"read","path":".ENV"}' "$T/in"
  lacks "a private name in another case" private "$T/output"
  works "F_GETPATH, F_FULLFSYNC and open files" "$PY" - "$T/in" <<'P'
import os, resource, sys
from pathlib import Path
from mlx_tools.macos import raise_open_files, real_case, sync_fully
folder = Path(sys.argv[1])
fd = os.open(folder, os.O_RDONLY)
assert real_case(fd, folder.parent / "IN").name == "in", real_case(fd, folder)
file = os.open(folder / "a.txt", os.O_RDWR)
sync_fully(file)
raise_open_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 4096, resource.getrlimit(resource.RLIMIT_NOFILE)
P
}

section_processes() {
  echo "== 5 processes: what is left after kill -9"
  mkdir -p "$T/tools/sleeper"
  printf '{"effects":["read"]}' >"$T/tools/sleeper/config.json"
  printf '{"name":"sleeper","description":"Sleeps.","parameters":{"properties":{}}}' >"$T/tools/sleeper/tool_definition.json"
  cat >"$T/tools/sleeper/execute.py" <<P
import subprocess, time
def execute(arguments):
    child = subprocess.Popen(["/bin/sleep", "611"], start_new_session=True)
    open("$T/sleeper.pid", "w").write(str(child.pid))
    time.sleep(60)
    return {}
P
  "$MT" tools add "$T/tools/sleeper" --yes >"$T/output" 2>&1
  "$MT" tools call sleeper '{}' --tools sleeper --approve always >>"$T/output" 2>&1 &
  caller=$!
  for _ in 1 2 3 4 5 6 7 8 9 10; do [ -s "$T/sleeper.pid" ] || sleep 1; done
  kill -9 "$caller" 2>/dev/null
  sleep 3
  child=$(cat "$T/sleeper.pid" 2>/dev/null)
  if [ -z "$child" ]; then
    no "a tool runs" "$(tail -n 1 "$T/output")"
  elif kill -0 "$child" 2>/dev/null; then
    no "what a tool started ends with the caller" "it is left"
    kill "$child"
  else
    ok "what a tool started ends with the caller"
  fi
}

section_metal() {
  echo "== 6 Metal: a server of our own, a model in this process"
  if [ "$quick" = yes ]; then echo "      left out"; return; fi
  works "the embedded model is fetched" "$MT" models pull smollm2-135m
  works "an own server" "$MT" ask --backend server --model smollm2-135m "What is 17 * 23?"
  works "a model in this process" "$MT" ask --backend local --model smollm2-135m "What is 17 * 23?"
  "$PY" -c 'import mlx.core as mx
info = mx.device_info() if hasattr(mx, "device_info") else mx.metal.device_info()
print({key: value for key, value in info.items() if "size" in key or "name" in key})'
  "$MT" models serve smollm2-135m --port 8087 >"$T/serve.log" 2>&1 &
  server=$!
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    curl -s -o /dev/null http://127.0.0.1:8087/health && break
    sleep 2
  done
  "$MT" doctor --url http://127.0.0.1:8087 >"$T/output" 2>&1
  holds "which model runs is known (lsof, ps)" smollm2-135m "$T/output"
  "$MT" ask --url http://127.0.0.1:8087 --tools calculator "What is 17 * 23?" >/dev/null 2>&1 &
  asking=$!
  sleep 1
  pmset -g assertions 2>/dev/null | grep -q caffeinate && ok "the Mac stays awake meanwhile" || echo "      caffeinate was not seen (the run may have been too short)"
  wait "$asking"
  kill "$server" 2>/dev/null
  wait "$server" 2>/dev/null
}

section_launchd() {
  echo "== 7 launchd: an agent, installed, started, removed"
  agent="gui/$(id -u)/org.mlx-tools.schedule"
  if launchctl print "$agent" >/dev/null 2>&1; then echo "      left out: you have one installed"; return; fi
  agree "install the agent of mlx-tools schedule for a minute?" || { echo "      left out"; return; }
  works "installed" "$MT" schedule install --yes
  works "installed again" "$MT" schedule install --yes
  launchctl kickstart -k "$agent"
  sleep 5
  launchctl print "$agent" >"$T/output" 2>&1
  holds "launchd knows it" org.mlx-tools.schedule "$T/output"
  holds "it has a PATH" PATH "$T/output"
  grep -E 'last exit|state =' "$T/output"
  works "removed" "$MT" schedule uninstall
}

section_look() {
  echo "== 8 the terminal"
  printf 'é — 北京' | env -i PATH="$PATH" LC_CTYPE=UTF-8 pbcopy
  equal "the clipboard keeps letters" "$(LC_CTYPE=UTF-8 pbpaste)" "é — 北京"
  [ "$quick" = no ] || return 0
  cat <<'P'
      Please look at these, and write beside each line what you saw:
      a  mlx-tools chat: paste 40 lines; Alt-Enter, Ctrl-J; Ctrl-R; Ctrl-X Ctrl-E; Ctrl-Z and fg; resize
      b  the same with: mlx-tools chat </dev/tty
      c  mlx-tools tools call file_access '{"operation":"list","path":"."}' --tools file_access --root ~/Documents
         (macOS asks; say no once: what is said?)
      d  a file of iCloud Drive that is not downloaded: mlx-tools kb add FILE
      e  a server on another machine: mlx-tools doctor --url http://OTHER.local:8080
      f  close the lid for a minute in the middle of an answer
P
}

all_sections() {
  section_machine
  section_sandbox
  section_commands
  section_files
  section_processes
  section_metal
  section_launchd
  section_look
  echo "== 9 doctor"
  "$MT" doctor 2>&1
  echo
  echo "$(wc -l <"$T/held" | tr -d ' ') hold, $(wc -l <"$T/failed" | tr -d ' ') do not"
  sed 's/^/  FALSE /' "$T/failed"
}

all_sections 2>&1 | scrub
[ ! -s "$T/failed" ]
