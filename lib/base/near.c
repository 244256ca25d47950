/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/near.h"

#define NAME_MAX_LEN 31
#define LETTERS_MAX  2 /* more is another word */

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;

	return m < c ? m : c;
}

/* How many letters must change for ${a} to become ${b}. */
static size_t distance(const char *a, const char *b)
{
	size_t row[NAME_MAX_LEN + 1], n = strlen(b), corner, up;

	for (size_t j = 0; j <= n; j++)
		row[j] = j;
	for (size_t i = 0; a[i]; i++) {
		corner = row[0];
		row[0] = i + 1;
		for (size_t j = 1; j <= n; j++) {
			up = row[j];
			row[j] = min3(up + 1, row[j - 1] + 1,
				      corner + (a[i] != b[j - 1]));
			corner = up;
		}
	}
	return row[n];
}

void near_try(struct near *n, const char *name)
{
	size_t d;

	if (!name || strlen(name) > NAME_MAX_LEN ||
	    strlen(n->word) > NAME_MAX_LEN)
		return;
	d = distance(n->word, name);
	/* Not a name that shares nothing with it. */
	if (d > LETTERS_MAX || d >= strlen(name) ||
	    (n->best && d >= n->letters))
		return;
	n->best = name;
	n->letters = d;
}
