/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINT_CPPCHECK_H
#define LINT_CPPCHECK_H

/* For cppcheck alone, which reads no header of the system. */
#define json_array_foreach(array, index, value)                                \
	for (index = 0; (value = json_array_get(array, index)); index++)

#endif
