# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# box_part NAME: run tests/sys/box/NAME.py and count its checks.
box_part() {
	box_file=$T/results
	if ! python3 -B "$(dirname "$0")/box/$1.py" >"$box_file" 2>"$T/err"; then
		diag "$(tail -n 20 "$T/err")"
		echo "1 $1.py ran to its end" >>"$box_file"
	fi
	while IFS= read -r box_line; do
		case $box_line in
		'#'*) printf '%s\n' "$box_line" ;;
		*) tap_result "${box_line%% *}" "${box_line#* }" ;;
		esac
	done <"$box_file"
}
