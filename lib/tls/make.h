/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TLS_MAKE_H
#define TLS_MAKE_H

#include <stdbool.h>
#include <stddef.h>

#include "tls/ident.h"

/*
 * Keys and certificates, as texts of PEM, the caller's to free: P-256, signed
 * with SHA-256, serial numbers of 127 random bits.
 */

/* make_key(ret_pem, e): wipe it before it is freed. */
int make_key(char **ret_pem, struct err *e);

/* make_ca(key, name, days, ret_pem, e): an authority that signs itself. */
int make_ca(const char *key, const char *name, unsigned days, char **ret_pem,
	    struct err *e);

/*
 * make_cert(ca, ca_key, want, ret_pem, e): nodes are servers, clients clients,
 * controls both.
 */
struct make_cert {
	struct tls_ident ident;
	const char *key; /* whose public half it is for; its secret stays out */
	const char *const *hosts; /* names and addresses of a server */
	size_t nhosts;
	unsigned days;
};
int make_cert(const char *ca, const char *ca_key, const struct make_cert *want,
	      char **ret_pem, struct err *e);

/* make_again(ca, ca_key, cert, key, days, ret_pem, e): the same as ${cert} (its
 * identity and hosts) with a new number and time. */
struct make_again {
	const char *cert, *key;
	unsigned days;
};
int make_again(const char *ca, const char *ca_key,
	       const struct make_again *want, char **ret_pem, struct err *e);

/*
 * make_crl(ca, ca_key, was, revoke, ret_pem, e): the revocation list ${was}
 * (NULL: an empty one) and the certificate ${revoke} (NULL: none), dated anew.
 */
int make_crl(const char *ca, const char *ca_key, const char *was,
	     const char *revoke, char **ret_pem, struct err *e);

/* make_is_revoked(crl, cert): does the list have it? */
bool make_is_revoked(const char *crl, const char *cert);

/* make_look(pem, ret, e): what a certificate says (clock_wall_ms()). */
struct make_looked {
	struct tls_ident ident;
	uint64_t from_ms, until_ms;
};
int make_look(const char *pem, struct make_looked *ret, struct err *e);

#endif
