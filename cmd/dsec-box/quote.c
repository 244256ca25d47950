/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "session_priv.h"

int session_quote(struct buf *b, const char *word)
{
	int r = buf_add(b, "'", 1);
	size_t n;

	while (r == 0 && *word) {
		n = strcspn(word, "'");
		r = buf_add(b, word, n);
		word += n;
		if (r == 0 && *word) {
			r = buf_add(b, "'\\''", 4);
			word++;
		}
	}
	return r < 0 ? r : buf_add(b, "'", 1);
}

int session_word(struct buf *b, const char *text)
{
	size_t n = strlen(text);
	int r = session_quote(b, text);

	/* A backslash at the end eats the newline after it. */
	if (r == 0)
		r = n > 0 && text[n - 1] == '\\' ? buf_add(b, "'\n\n'", 4)
						 : buf_add(b, "'\n'", 3);
	return r;
}

bool session_may_be_open(const char *text)
{
	char quote = '\0';
	int depth = 0;

	/* Where quotes may mean nothing, this is no judge. */
	if ((strstr(text, "<<") || strchr(text, '#')) &&
	    strpbrk(text, "'\"`(){}"))
		return true;
	for (const char *p = text; *p; p++) {
		if (quote != '\'' && *p == '\\' && p[1])
			p++;
		else if (quote)
			quote = *p == quote ? '\0' : quote;
		else if (*p == '\'' || *p == '"' || *p == '`')
			quote = *p;
		else if (*p == '(' || *p == '{')
			depth++;
		else if (*p == ')' || *p == '}')
			depth--;
	}
	return quote || depth != 0;
}
