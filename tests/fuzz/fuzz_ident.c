/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a URI names, and whom a certificate does, in DER or PEM. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "fuzz.h"
#include "tls/make.h"

/* What is taken is said again to the letter. */
static void check(const struct tls_ident *id)
{
	struct tls_ident again;
	char uri[TLS_URI_MAX];

	assert(tls_name_ok(id->name));
	tls_ident_uri(id, uri);
	assert(tls_ident_parse(uri, strlen(uri), &again) == 0);
	assert(again.kind == id->kind && !strcmp(again.name, id->name));
}

static void try_uri(const char *text, size_t len)
{
	struct tls_ident id;
	char uri[TLS_URI_MAX];

	if (tls_ident_parse(text, len, &id) < 0)
		return;
	check(&id);
	tls_ident_uri(&id, uri);
	assert(strlen(uri) == len && !memcmp(uri, text, len));
}

static void try_der(const uint8_t *data, size_t len)
{
	X509 *cert = d2i_X509(NULL, &data, (long)len);
	struct tls_ident id;

	if (cert && tls_ident_of(cert, &id, NULL) == 0) {
		check(&id);
		(void)tls_not_after_ms(cert);
	}
	X509_free(cert);
}

static void try_pem(const uint8_t *data, size_t len)
{
	auto_free char *text = strndup((const char *)data, len);
	struct make_looked l;

	if (text && make_look(text, &l, NULL) == 0)
		check(&l.ident);
	if (text)
		(void)make_is_revoked(text, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_uri((const char *)data, size);
	try_der(data, size);
	try_pem(data, size);
	return 0;
}
