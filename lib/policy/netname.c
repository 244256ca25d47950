/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "policy/netname.h"

#define LABEL_MAX 63

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The canonical byte of a label, or 0. */
static char canon_byte(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c - 'A' + 'a');
	if ((c >= 'a' && c <= 'z') || is_digit(c) || c == '-' || c == '_')
		return c;
	return '\0';
}

/* What inet_aton() would take for (a part of) an address. */
static bool is_number(const char *label)
{
	if (label[0] == '0' && label[1] == 'x')
		return label[2 + strspn(label + 2, "0123456789abcdef")] == '\0';
	return label[strspn(label, "0123456789")] == '\0';
}

int netname_canon(const char *name, size_t len, char *out)
{
	size_t start = 0; /* of the label */
	char c;

	if (len > 0 && name[len - 1] == '.')
		len--;
	if (len == 0 || len > NETNAME_MAX)
		return -EINVAL;
	for (size_t i = 0; i <= len; i++) {
		if (i == len || name[i] == '.') {
			if (i == start || i - start > LABEL_MAX ||
			    name[start] == '-' || name[i - 1] == '-')
				return -EINVAL;
			if (i == len)
				break;
			out[i] = '.';
			start = i + 1;
			continue;
		}
		c = canon_byte(name[i]);
		if (!c)
			return -EINVAL;
		out[i] = c;
	}
	out[len] = '\0';
	return is_number(out + start) ? -EINVAL : 0;
}

int netname_pattern(const char *text, char *out)
{
	size_t len = strlen(text);

	if (strncmp(text, "*.", 2))
		return netname_canon(text, len, out);
	if (len > 2 && text[len - 1] == '.')
		len--;
	/* What it matches is no shorter than itself. */
	if (len > NETNAME_MAX || text[len - 1] == '.' ||
	    netname_canon(text + 2, len - 2, out + 2) < 0)
		return -EINVAL;
	out[0] = '*';
	out[1] = '.';
	return 0;
}

bool netname_match(const char *pattern, const char *name)
{
	size_t n, m;

	if (strncmp(pattern, "*.", 2))
		return !strcmp(pattern, name);
	pattern++; /* ".b" */
	n = strlen(name);
	m = strlen(pattern);
	return n > m && !strcmp(name + n - m, pattern);
}

bool netname_within(const char *in, const char *out)
{
	bool wild_in = !strncmp(in, "*.", 2);

	if (wild_in && strncmp(out, "*.", 2))
		return false;
	/* "*.a.b" is within "*.b" as "a.b" is; and within itself. */
	return !strcmp(in, out) || netname_match(out, wild_in ? in + 2 : in);
}
