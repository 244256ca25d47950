/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TLS_TLS_H
#define TLS_TLS_H

#include "base/loop.h"
#include "tls/ident.h"

/*
 * TLS 1.3 with certificates on both sides.  A struct tls is what a process
 * needs for that: its own certificate, the authorities it trusts, and which of
 * their certificates are revoked.  All of it can be replaced while connections
 * are open.
 */

/* The texts of PEM files: who may not open files gets them from who may. */
struct tls_pem {
	char *ca;   /* certificates of authorities, one or more */
	char *cert; /* our own */
	char *key;
	char *crl; /* revocation lists of those authorities; NULL: none */
};

struct tls_files {
	const char *ca, *cert, *key;
	const char *crl; /* NULL: none */
};

/*
 * tls_pem_read(dirfd, files, ret, e): "configuration" when the key can be read
 * by others.  tls_pem_done() wipes the key.
 */
int tls_pem_read(int dirfd, const struct tls_files *files, struct tls_pem *ret,
		 struct err *e);
void tls_pem_done(struct tls_pem *pem);

struct tls;

/*
 * tls_new(pem, ret, e), tls_replace(t, pem, e):
 * "configuration" when something in ${pem} does not fit together.  A failed
 * replace leaves all as it was.  After one that succeeded, handshakes use what
 * is new, sessions of before cannot be resumed, connections go on, and those
 * whose peer is revoked now are lost (as by tls_sweep()).
 * tls_free(t): after its last stream.
 */
int tls_new(const struct tls_pem *pem, struct tls **ret, struct err *e);
int tls_replace(struct tls *t, const struct tls_pem *pem, struct err *e);
void tls_free(struct tls *t);

/* tls_sweep(t): connections whose peer's certificate is revoked or has expired
 * are lost; their lost() is called.  To be called about every second. */
void tls_sweep(struct tls *t);

/* Our own identity, and from when and until when (clock_wall_ms()) our
 * certificate is good. */
const struct tls_ident *tls_own(const struct tls *t);
uint64_t tls_own_from_ms(const struct tls *t);
uint64_t tls_own_until_ms(const struct tls *t);

/* --- streams --------------------------------------------------------------
 *
 * A connection, non-blocking, on a loop.  Its callbacks come from the loop
 * alone, never from a function called here, tls_sweep() and tls_replace()
 * apart; in any of them the stream may be freed.
 */
struct tls_stream;

struct tls_stream_ops {
	/* The handshake is done and the peer is who it should be. */
	void (*up)(void *arg);
	/* What tls_stream_watch() asked for may go on: read, and write. */
	void (*io)(void *arg);
	/* No handshake, or a peer that is not trusted (any more).  The stream
	 * is of no more use. */
	void (*lost)(void *arg, const struct err *why);
};

enum tls_stream_flags {
	TLS_STREAM_SERVER = 1 << 0, /* we accept: clients and controls */
};

struct tls_stream_conf {
	struct tls *tls;
	struct loop *loop;
	unsigned flags;
	unsigned handshake_ms; /* 0: 10 s */
	/* As a client, who must answer: this identity, or (NULL) any node or
	 * control whose certificate is for this host (a name or address; NULL:
	 * any). */
	const struct tls_ident *peer;
	const char *host;
	const struct tls_stream_ops *ops;
	void *arg;
};

/*
 * tls_stream_new(conf, fd, ret, e): a connected socket *${fd}, taken over and
 * made non-blocking; strings of ${conf} are copied.  tls_stream_free() tells
 * the peer that no more comes, if that can be said at once.
 */
int tls_stream_new(const struct tls_stream_conf *conf, int *fd,
		   struct tls_stream **ret, struct err *e);
void tls_stream_free(struct tls_stream *s);

/* tls_stream_peer(s): once it is up; NULL before. */
const struct tls_ident *tls_stream_peer(const struct tls_stream *s);

/*
 * tls_stream_read(s, data, cap, e): bytes, 0 at the end that the peer has
 * declared, -EAGAIN; else it broke off.  With room for TLS_RECORD_MAX bytes
 * nothing stays behind that no event tells of.
 * tls_stream_write(s, data, len, e): how many were taken, or -EAGAIN.
 * tls_stream_end(s): says that we write no more; 0, -EAGAIN, or -errno.
 */
#define TLS_RECORD_MAX 16384
ssize_t tls_stream_read(struct tls_stream *s, void *data, size_t cap,
			struct err *e);
ssize_t tls_stream_write(struct tls_stream *s, const void *data, size_t len,
			 struct err *e);
int tls_stream_end(struct tls_stream *s);

/* tls_stream_watch(s, in, out): call io() when there is something to read, when
 * something can be written. */
void tls_stream_watch(struct tls_stream *s, bool in, bool out);

#endif
