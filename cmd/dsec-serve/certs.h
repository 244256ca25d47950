/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_CERTS_H
#define DSEC_SERVE_CERTS_H

#include "serve.h"
#include "tls/make.h"

/* The directory of an authority, locked: ca.pem, ca.key, crl.pem, issued/. */
struct certs {
	const char *path;
	int dir;
	char *ca, *ca_key;
};

int certs_open(const char *path, struct certs *ret, struct err *e);
void certs_close(struct certs *c);

/* certs_read(), certs_write(): a file of a directory, whole; a secret for its
 * owner alone. */
int certs_read(int dir, const char *name, char **ret, struct err *e);
int certs_write(int dir, const char *name, const char *text, bool secret,
		struct err *e);
bool certs_there(int dir, const char *name);

/* certs_ident(kind, name, ret, e): "bad_value" for what is no name. */
int certs_ident(enum tls_kind kind, const char *name, struct tls_ident *ret,
		struct err *e);

/* certs_issue(c, want, prefix, e): a key and its certificate, to
 * PREFIX.key and PREFIX.pem; want->key is made.  certs_days(a): what is asked,
 * or 90. */
unsigned certs_days(const struct args *a);
int certs_issue(const struct certs *c, const struct make_cert *want,
		const char *prefix, struct err *e);

/* certs_told(cert, file, what, e): a record about it on stdout. */
int certs_told(const char *cert, const char *file, const char *what,
	       struct err *e);

#endif
