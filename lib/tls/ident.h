/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TLS_IDENT_H
#define TLS_IDENT_H

#include <openssl/x509.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Who a certificate is for: its one URI of the scheme dsec, such as
 * dsec://node/n1, in the subject's alternative names.
 */
enum tls_kind {
	TLS_NODE,
	TLS_CONTROL,
	TLS_CLIENT,
};

#define TLS_NAME_MAX 64
#define TLS_URI_MAX  (sizeof("dsec://control/") + TLS_NAME_MAX)

struct tls_ident {
	enum tls_kind kind;
	char name[TLS_NAME_MAX + 1]; /* [A-Za-z0-9._-], first alphanumeric */
};

/* tls_kind_name(kind): "node", "control", "client". */
const char *tls_kind_name(enum tls_kind kind);

/* tls_name_ok(name): is it one that an identity may have? */
bool tls_name_ok(const char *name);

/* tls_ident_parse(uri, len, ret): 0, or -EINVAL. */
int tls_ident_parse(const char *uri, size_t len, struct tls_ident *ret);

/* tls_ident_uri(id, ret): as text into ret[TLS_URI_MAX]. */
void tls_ident_uri(const struct tls_ident *id, char *ret);

/* tls_ident_of(cert, ret, e): -EACCES, "permission": it has none, or several.
 */
int tls_ident_of(const X509 *cert, struct tls_ident *ret, struct err *e);

/* tls_not_before_ms(cert), tls_not_after_ms(cert): from when and until when it
 * is good, as clock_wall_ms() counts; 0 when that cannot be read. */
uint64_t tls_not_before_ms(const X509 *cert);
uint64_t tls_not_after_ms(const X509 *cert);

#endif
