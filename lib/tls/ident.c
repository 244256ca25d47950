/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/cleanup.h"
#include "tls/ident.h"

#define SCHEME "dsec://"

static const char *const kinds[] = {
	[TLS_NODE] = "node",
	[TLS_CONTROL] = "control",
	[TLS_CLIENT] = "client",
};

const char *tls_kind_name(enum tls_kind kind)
{
	return kinds[kind];
}

static bool is_alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       (c >= '0' && c <= '9');
}

static bool is_name(const char *s, size_t len)
{
	if (len == 0 || len > TLS_NAME_MAX || !is_alnum(s[0]))
		return false;
	for (size_t i = 1; i < len; i++)
		if (!is_alnum(s[i]) && s[i] != '.' && s[i] != '_' &&
		    s[i] != '-')
			return false;
	return true;
}

bool tls_name_ok(const char *name)
{
	return is_name(name, strlen(name));
}

int tls_ident_parse(const char *uri, size_t len, struct tls_ident *ret)
{
	const char *kind = uri + strlen(SCHEME), *name;
	struct tls_ident id = {0};
	size_t n;

	if (len <= strlen(SCHEME) || memcmp(uri, SCHEME, strlen(SCHEME)))
		return -EINVAL;
	name = memchr(kind, '/', len - strlen(SCHEME));
	if (!name)
		return -EINVAL;
	name++;
	n = len - (size_t)(name - uri);
	if (!is_name(name, n))
		return -EINVAL;
	memcpy(id.name, name, n);
	n = (size_t)(name - kind) - 1;
	for (size_t i = 0; i < array_len(kinds); i++) {
		if (strlen(kinds[i]) != n || memcmp(kinds[i], kind, n))
			continue;
		id.kind = (enum tls_kind)i;
		*ret = id;
		return 0;
	}
	return -EINVAL;
}

void tls_ident_uri(const struct tls_ident *id, char *ret)
{
	snprintf(ret, TLS_URI_MAX, SCHEME "%s/%s", kinds[id->kind], id->name);
}

/* Whatever it says, if it is of our scheme: there may be one such alone. */
static bool is_ours(const ASN1_IA5STRING *uri)
{
	static const char scheme[] = "dsec:";
	const size_t n = sizeof(scheme) - 1;

	return (size_t)ASN1_STRING_length(uri) >= n &&
	       !strncasecmp((const char *)ASN1_STRING_get0_data(uri), scheme,
			    n);
}

int tls_ident_of(const X509 *cert, struct tls_ident *ret, struct err *e)
{
	GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name,
						NULL, NULL);
	struct tls_ident id = {0};
	unsigned found = 0;
	bool good = true;

	for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
		const GENERAL_NAME *g = sk_GENERAL_NAME_value(names, i);
		const ASN1_IA5STRING *uri;

		if (g->type != GEN_URI)
			continue;
		uri = g->d.uniformResourceIdentifier;
		if (!is_ours(uri))
			continue;
		found++;
		good = tls_ident_parse((const char *)ASN1_STRING_get0_data(uri),
				       (size_t)ASN1_STRING_length(uri),
				       &id) == 0;
	}
	GENERAL_NAMES_free(names);
	if (found != 1 || !good)
		return err_set(e, -EACCES, "permission",
			       "a certificate with %s identity of the form "
			       "dsec://KIND/NAME",
			       found > 1 ? "more than one" : "no");
	*ret = id;
	return 0;
}

static uint64_t wall_ms(const ASN1_TIME *at)
{
	struct tm tm;
	time_t t;

	if (!at || ASN1_TIME_to_tm(at, &tm) != 1)
		return 0;
	t = timegm(&tm);
	return t < 0 ? 0 : (uint64_t)t * 1000;
}

uint64_t tls_not_before_ms(const X509 *cert)
{
	return wall_ms(X509_get0_notBefore(cert));
}

uint64_t tls_not_after_ms(const X509 *cert)
{
	return wall_ms(X509_get0_notAfter(cert));
}
