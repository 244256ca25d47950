/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TLS_TLS_PRIV_H
#define TLS_TLS_PRIV_H

#include <openssl/ssl.h>

#include "tls/tls.h"

/* What was loaded together. */
struct tls_set {
	SSL_CTX *server, *client;
	STACK_OF(X509_CRL) * crls; /* each signed by one of the authorities */
	struct tls_ident own;
	uint64_t own_from_ms, own_until_ms;
};

struct tls {
	struct tls_set set;
	struct tls_stream *streams; /* all of them */
	unsigned round;		    /* of tls_sweep() */
};

struct tls_stream {
	struct tls *tls;
	struct tls_stream *next, **pprev;
	struct loop *loop;
	struct loop_source src;
	struct loop_timer timer; /* of the handshake */
	const struct tls_stream_ops *ops;
	void *arg;
	SSL *ssl;
	int fd;
	unsigned round;
	bool server, up;
	bool heard;	       /* bytes came */
	bool in, out;	       /* watched for */
	bool read_wants_write; /* what hinders the last read */
	bool write_wants_read; /* ... the last write */
	bool broken;	       /* nothing may be said any more */
	bool want_peer;	       /* peer is who must answer */
	struct tls_ident want; /* as a client */
	struct tls_ident peer; /* when it is up */
	uint64_t peer_until_ms;
	struct err why; /* the handshake's failure, as the verifier saw it */
};

/* tls_set_load(pem, ret, e), tls_set_done(set): (set.c) */
int tls_set_load(const struct tls_pem *pem, struct tls_set *ret, struct err *e);
void tls_set_done(struct tls_set *set);

/* tls_set_revoked(set, cert): does a list have it? */
bool tls_set_revoked(const struct tls_set *set, X509 *cert);

/* tls_verify(good, ctx): (stream.c) OpenSSL's verify callback. */
int tls_verify(int good, X509_STORE_CTX *ctx);

#endif
