#!/usr/bin/env bash
# `make test` in a row, each time as another stranger might run it, with a summary.
#
#   scripts/test_hard.sh                 all of them, from a new clone of this checkout's last commit
#   scripts/test_hard.sh plain core      these alone
#
# On a Mac all but core and user. Names: plain (twice), busy (beside four busy loops, five times), core (on one core), user (another
# user; as root only), language (LANG=C), programs (without bwrap, tmux, chromium, PostgreSQL, zsh),
# home (HOME names nothing), watched (a HOME and XDG folders in which nothing may be written).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d "${TMPDIR:-/tmp}/test-hard-XXXXXX")
clone=$work/clone
failed=0
summary=()
busy=()

stop_busy() {
  [ ${#busy[@]} = 0 ] || kill "${busy[@]}" 2>/dev/null || true
  busy=()
}
trap stop_busy EXIT

git clone -q . "$clone"
make -C "$clone" setup

run() { # run NAME COMMAND…: a run of the tests, its output in a file of that name
  local name=$1 begun=$SECONDS result=green
  shift
  "$@" >"$work/$name.log" 2>&1 </dev/null || { result=RED && failed=1; }
  summary+=("$result  $((SECONDS - begun)) s  $name  $(tail -n 1 "$work/$name.log")")
  echo "${summary[${#summary[@]} - 1]}"
}

plain() { for number in 1 2; do run "plain-$number" make -C "$clone" test; done; }

busy() {
  for number in 1 2 3 4 5; do
    for _ in 1 2 3 4; do
      sh -c 'while :; do :; done' &
      busy+=($!)
    done
    run "busy-$number" make -C "$clone" test
    stop_busy
  done
}

linux() { [ "$(uname -s)" = Linux ] || { echo "$1: only on Linux"; return 1; }; }

core() {
  linux core || return 0
  run core taskset -c 0 make -C "$clone" test
}

user() {
  linux user || return 0
  [ "$(id -u)" = 0 ] || { echo "user: only root can be another user"; return; }
  local name=mlx-tools-tests
  id -u "$name" >/dev/null 2>&1 || useradd --create-home "$name"
  local own
  own=$(getent passwd "$name" | cut -d: -f6)/clone
  rm -rf "$own"
  cp -R "$clone" "$own"
  rm -rf "$own/.venv"
  chown -R "$name" "$own"
  run user su "$name" -s /bin/sh -c "unset TMPDIR; make -C '$own' test"
}

language() { run language env -u LC_ALL -u LC_CTYPE LANG=C make -C "$clone" test; }

programs() { # a PATH of links to all there is, but for these; PostgreSQL is found elsewhere
  local folder=$work/bin program
  local hide=(env)
  mkdir -p "$folder"
  for program in $(echo "$PATH" | tr : '\n' | while read -r place; do ls -d "$place"/* 2>/dev/null; done); do
    case ${program##*/} in
      bwrap | tmux | chromium* | google-chrome* | postgres | pg_* | psql | initdb | zsh) ;;
      *) [ -e "$folder/${program##*/}" ] || ln -s "$program" "$folder/${program##*/}" ;;
    esac
  done
  if [ "$(id -u)" = 0 ] && [ -d /usr/lib/postgresql ]; then
    hide=(unshare --mount sh -c 'mount -t tmpfs none /usr/lib/postgresql && exec "$@"' sh)
  fi
  run programs env "PATH=$folder" "${hide[@]}" make -C "$clone" test
}

home() { run home env -u XDG_CONFIG_HOME -u XDG_CACHE_HOME HOME=/nonexistent make -C "$clone" test; }

watched() {
  local home=$work/home
  mkdir -p "$home"/{config,data,state,cache}
  run watched env "HOME=$home" "XDG_CONFIG_HOME=$home/config" "XDG_DATA_HOME=$home/data" \
    "XDG_STATE_HOME=$home/state" "XDG_CACHE_HOME=$home/cache" \
    make -C "$clone" test
  if [ -n "$(find "$home" -type f)" ]; then
    find "$home" -type f
    summary+=("RED  watched: files were written into the home") && failed=1
  fi
}

for name in "${@:-}"; do
  case $name in
    plain | busy | core | user | language | programs | home | watched) "$name" ;;
    "") for each in plain busy core user language programs home watched; do "$each"; done ;;
    *) echo "test_hard: there is no run $name" && exit 2 ;;
  esac
done

echo
printf '%s\n' "${summary[@]}"
echo "logs: $work"
exit $failed
