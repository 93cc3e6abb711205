#!/usr/bin/env bash
# Run `rankwise check` on the weight files that a pull request or push changed, or on given files.
# Exits with the code of the check; with 0 if there is no file to check. action.yml sets these
# variables; all but the first may be empty:
#   RANKWISE          the command, an absolute path
#   RANKWISE_FILES    "changed", or paths and globs, one per line
#   RANKWISE_SINCE    the revision that changes are counted from
#   EVENT_SINCE       the same as the event says, used without RANKWISE_SINCE
#   RANKWISE_BASE     a checkpoint to compare with
#   RANKWISE_FAIL_ON  "error" or "warning"
#   RANKWISE_IGNORE   KIND[:LAYER], one per line
#   RANKWISE_SARIF    the SARIF file to write
set -euo pipefail

# Extensions that other data have too (.npz, .bin) are left out; such files can be given by name.
PATTERNS=(
    ':(icase)*.safetensors' ':(icase)*.pt' ':(icase)*.pth' ':(icase)*.ckpt' ':(icase)*.onnx'
    ':(icase)*pytorch_model*.bin'
)

fail() {
    printf 'rankwise: %q: %s\n' "$1" "$2" >&2
    exit 1
}

# Print the commit of a revision; fetch it if the clone is too shallow to have it.
find_commit() {
    [ -n "$1" ] || return
    git rev-parse --quiet --verify --end-of-options "$1^{commit}" && return
    git fetch --quiet --depth=1 --end-of-options origin "$1" 2>/dev/null || return
    git rev-parse --verify 'FETCH_HEAD^{commit}'
}

# Print the changed weight files that still exist, each followed by NUL.
list_changed() {
    local commit
    if [ -n "${RANKWISE_SINCE:-}" ]; then
        commit=$(find_commit "$RANKWISE_SINCE") || fail "$RANKWISE_SINCE" "no such revision here or at origin."
    elif ! commit=$(find_commit "${EVENT_SINCE:-}"); then
        # A new branch, a manual run, or history that was rewritten.
        echo "No earlier revision to compare with: all weight files are checked." >&2
        git ls-files -z -- "${PATTERNS[@]}"
        return
    fi
    git diff -z --name-only --no-renames --diff-filter=d "$commit" HEAD -- "${PATTERNS[@]}"
}

# Print the files that the lines of RANKWISE_FILES stand for, each followed by NUL.
list_given() {
    local line matches IFS=
    shopt -s nullglob
    shopt -s globstar 2>/dev/null || true # bash 4
    while read -r line; do
        [ -n "$line" ] || continue
        # shellcheck disable=SC2206 # globs are expanded; without IFS nothing is split
        matches=($line)
        [ ${#matches[@]} -gt 0 ] || fail "$line" "no file matches."
        printf '%s\0' "${matches[@]}"
    done < <(strip_lines "$RANKWISE_FILES")
}

strip_lines() {
    printf '%s\n' "$1" | sed -e 's/^[[:space:]]*//' -e 's/[[:space:]]*$//'
}

summary=${GITHUB_STEP_SUMMARY:-/dev/null}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "${RANKWISE_FILES:-changed}" = changed ]; then
    top=$(git rev-parse --show-toplevel) || exit 1
    cd "$top"
    (list_changed) >"$work/files" || exit 1
else
    (list_given) >"$work/files" || exit 1
fi
files=()
while IFS= read -r -d '' file; do files+=("$file"); done <"$work/files"
if [ ${#files[@]} -eq 0 ]; then
    echo "rankwise check: no weight file changed." | tee -a "$summary"
    exit 0
fi

options=(--fail-on "${RANKWISE_FAIL_ON:-error}")
while IFS= read -r line; do
    [ -z "$line" ] || options+=(--ignore "$line")
done < <(strip_lines "${RANKWISE_IGNORE:-}")
[ -z "${RANKWISE_BASE:-}" ] || options+=(--base "$RANKWISE_BASE")
[ -z "${RANKWISE_SARIF:-}" ] || options+=(--sarif "$RANKWISE_SARIF")

# Without this, names of files could act as commands of the workflow.
token="rankwise-$RANDOM$RANDOM$RANDOM"
[ -z "${GITHUB_ACTIONS:-}" ] || echo "::stop-commands::$token"
code=0
"$RANKWISE" check "${options[@]}" -- "${files[@]}" 2>&1 | tee "$work/report" || code=${PIPESTATUS[0]}
[ -z "${GITHUB_ACTIONS:-}" ] || echo "::$token::"
{
    printf '### rankwise check\n\n``````text\n'
    cat "$work/report"
    printf '``````\n'
} >>"$summary"
exit "$code"
