/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tls/tls_priv.h"

#define HANDSHAKE_MS 10000

/* --- who it is ------------------------------------------------------------ */

static bool may_be(const struct tls_stream *s, const struct tls_ident *id)
{
	if (s->server)
		return id->kind != TLS_NODE;
	if (s->want_peer)
		return id->kind == s->want.kind &&
		       !strcmp(id->name, s->want.name);
	return id->kind != TLS_CLIENT;
}

/* Whatever the chain's check said already. */
static int check_peer(struct tls_stream *s, X509 *cert, struct err *e)
{
	uint64_t now = clock_wall_ms();
	char uri[TLS_URI_MAX];
	int r = tls_ident_of(cert, &s->peer, e);

	if (r < 0)
		return r;
	tls_ident_uri(&s->peer, uri);
	if (!may_be(s, &s->peer))
		return err_set(e, -EACCES, "permission",
			       "the peer is %s, which is not who should be "
			       "there",
			       uri);
	s->peer_until_ms = tls_not_after_ms(cert);
	if (tls_not_before_ms(cert) > now)
		return err_set(e, -EACCES, "permission",
			       "the certificate of %s is not valid yet", uri);
	if (s->peer_until_ms <= now)
		return err_set(e, -EKEYEXPIRED, "permission",
			       "the certificate of %s has expired", uri);
	if (tls_set_revoked(&s->tls->set, cert))
		return err_set(e, -EKEYREVOKED, "permission",
			       "the certificate of %s is revoked", uri);
	return 0;
}

static int check_issuer(struct tls_stream *s, X509 *cert)
{
	if (!tls_set_revoked(&s->tls->set, cert))
		return 0;
	return err_set(&s->why, -EKEYREVOKED, "permission",
		       "the peer's certificate is from one that is revoked");
}

static int x509_error_of(int r)
{
	return r == -EKEYREVOKED   ? X509_V_ERR_CERT_REVOKED
	       : r == -EKEYEXPIRED ? X509_V_ERR_CERT_HAS_EXPIRED
				   : X509_V_ERR_APPLICATION_VERIFICATION;
}

int tls_verify(int good, X509_STORE_CTX *ctx)
{
	SSL *ssl = X509_STORE_CTX_get_ex_data(
		ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
	struct tls_stream *s = ssl ? SSL_get_app_data(ssl) : NULL;
	int r;

	if (!s)
		return 0;
	if (!good) {
		err_set(&s->why, -EACCES, "permission",
			"the peer's certificate: %s",
			X509_verify_cert_error_string(
				X509_STORE_CTX_get_error(ctx)));
		return 0;
	}
	if (X509_STORE_CTX_get_error_depth(ctx) > 0)
		r = check_issuer(s, X509_STORE_CTX_get_current_cert(ctx));
	else
		r = check_peer(s, X509_STORE_CTX_get_current_cert(ctx),
			       &s->why);
	if (r < 0)
		X509_STORE_CTX_set_error(ctx, x509_error_of(r));
	return r == 0;
}

/* A resumed session brings its certificate along and verifies nothing. */
static int accept_peer(struct tls_stream *s, struct err *e)
{
	X509 *cert = SSL_get1_peer_certificate(s->ssl);
	int r;

	if (!cert || SSL_get_verify_result(s->ssl) != X509_V_OK)
		r = err_set(e, -EACCES, "permission",
			    "the peer has no certificate that is good");
	else
		r = check_peer(s, cert, e);
	X509_free(cert);
	return r;
}

/* --- events --------------------------------------------------------------- */

static void rearm(struct tls_stream *s)
{
	uint32_t events = 0;

	if ((s->in && !s->read_wants_write) || s->write_wants_read)
		events |= EPOLLIN;
	if ((s->out && !s->write_wants_read) || s->read_wants_write)
		events |= EPOLLOUT;
	/* On an epoll instance that has it already this does not fail. */
	(void)loop_mod(s->loop, &s->src, events, NULL);
}

static void lose(struct tls_stream *s, const struct err *why)
{
	struct err copy = *why;

	s->broken = true;
	loop_del(s->loop, &s->src);
	loop_timer_set(s->loop, &s->timer, 0);
	s->ops->lost(s->arg, &copy);
}

/* What is wrong with our certificate, if that is what the peer's alert says. */
static const char *refusal(unsigned long code)
{
	switch (ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0) {
	case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
		return "revoked";
	case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
		return "expired";
	case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
	case SSL_R_TLSV1_ALERT_DECRYPT_ERROR: /* of one that has its name */
		return "of an authority that it does not know";
	case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
		return "there is none";
	case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
	case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
		return "not one that is good";
	default:
		return NULL;
	}
}

/* A server that refuses a client's certificate says so when the client, for
 * whom the handshake is over, has written more: the kernel tells him of the
 * reset first, and keeps the alert. */
static unsigned long last_words(struct tls_stream *s)
{
	char byte;

	ERR_clear_error();
	(void)SSL_read(s->ssl, &byte, 1);
	return ERR_peek_error();
}

/* The reason of a failed call, of the verifier's before OpenSSL's. */
static int failure(struct tls_stream *s, int ssl_error, int errnum,
		   struct err *e)
{
	unsigned long code = ERR_peek_error();
	const char *text;

	if (ssl_error == SSL_ERROR_SYSCALL && !s->server && s->up && !s->heard)
		code = last_words(s);
	text = code ? ERR_reason_error_string(code) : NULL;
	s->broken = true;
	ERR_clear_error();
	if (s->why.r < 0) {
		if (e)
			*e = s->why;
		return s->why.r;
	}
	if (refusal(code))
		return err_set(e, -EKEYREJECTED, "permission",
			       "the peer refused this certificate: %s",
			       refusal(code));
	if (ERR_GET_REASON(code) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
		return err_set(e, -EACCES, "permission",
			       "the peer has no certificate");
	if (ssl_error == SSL_ERROR_SYSCALL && errnum)
		return err_sys(e, errnum, "TLS");
	if (!text || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		return err_set(e, -ECONNRESET, "io",
			       "TLS: the peer broke the connection off");
	return err_set(e, -EPROTO, "io", "TLS: %s", text);
}

static void shake(struct tls_stream *s)
{
	struct err e = {0};
	int n, why, r;

	ERR_clear_error();
	errno = 0;
	n = SSL_do_handshake(s->ssl);
	r = errno;
	if (n != 1) {
		why = SSL_get_error(s->ssl, n);
		s->in = why == SSL_ERROR_WANT_READ;
		s->out = why == SSL_ERROR_WANT_WRITE;
		if (s->in || s->out) {
			rearm(s);
			return;
		}
		failure(s, why, r, &e);
		lose(s, &e);
		return;
	}
	if (accept_peer(s, &e) < 0) {
		lose(s, &e);
		return;
	}
	s->up = true;
	loop_timer_set(s->loop, &s->timer, 0);
	s->in = s->out = false;
	rearm(s);
	s->ops->up(s->arg);
}

static void on_socket(struct loop *l, struct loop_source *src, uint32_t events)
{
	struct tls_stream *s = src->arg;

	(void)l;
	if (!s->up) {
		shake(s);
		return;
	}
	/* With nothing asked for, the kernel still tells of a hang-up, over
	 * and over. */
	if (!(events & (EPOLLIN | EPOLLOUT)) && !s->in && !s->out) {
		struct err e = {0};

		err_set(&e, -ECONNRESET, "io",
			"TLS: the peer broke the connection off");
		lose(s, &e);
		return;
	}
	s->ops->io(s->arg);
}

static void on_late(struct loop *l, struct loop_timer *t)
{
	struct tls_stream *s = t->arg;
	struct err e = {0};

	(void)l;
	err_set(&e, -ETIMEDOUT, "timeout", "no TLS handshake in time");
	lose(s, &e);
}

/* --- a stream ------------------------------------------------------------- */

static bool is_address(const char *host)
{
	unsigned char buf[sizeof(struct in6_addr)];

	return inet_pton(AF_INET, host, buf) == 1 ||
	       inet_pton(AF_INET6, host, buf) == 1;
}

static bool expect_host(SSL *ssl, const char *host)
{
	X509_VERIFY_PARAM *param = SSL_get0_param(ssl);

	if (is_address(host))
		return X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1;
	return SSL_set_tlsext_host_name(ssl, host) == 1 &&
	       SSL_set1_host(ssl, host) == 1;
}

static bool start(struct tls_stream *s, const struct tls_stream_conf *conf)
{
	s->ssl = SSL_new(s->server ? s->tls->set.server : s->tls->set.client);
	if (!s->ssl || SSL_set_fd(s->ssl, s->fd) != 1)
		return false;
	SSL_set_app_data(s->ssl, s);
	if (s->server) {
		SSL_set_accept_state(s->ssl);
		return true;
	}
	SSL_set_connect_state(s->ssl);
	if (conf->peer) {
		s->want = *conf->peer;
		s->want_peer = true;
		return true;
	}
	return !conf->host || expect_host(s->ssl, conf->host);
}

static void drop(struct tls_stream *s)
{
	SSL_free(s->ssl);
	if (s->fd >= 0)
		fd_close(s->fd);
	free(s);
}

static void link_up(struct tls_stream *s)
{
	s->next = s->tls->streams;
	if (s->next)
		s->next->pprev = &s->next;
	s->tls->streams = s;
	s->pprev = &s->tls->streams;
	s->round = s->tls->round;
}

int tls_stream_new(const struct tls_stream_conf *conf, int *fd,
		   struct tls_stream **ret, struct err *e)
{
	struct tls_stream *s = calloc(1, sizeof(*s));
	unsigned ms = conf->handshake_ms ? conf->handshake_ms : HANDSHAKE_MS;
	const int on = 1;
	int r;

	if (!s) {
		fd_close(steal_fd(fd));
		return err_sys(e, ENOMEM, "TLS");
	}
	s->tls = conf->tls;
	s->loop = conf->loop;
	s->ops = conf->ops;
	s->arg = conf->arg;
	s->server = conf->flags & TLS_STREAM_SERVER;
	s->fd = steal_fd(fd);
	/* No TCP socket: fine. */
	(void)setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (fcntl(s->fd, F_SETFL, O_NONBLOCK) < 0)
		r = err_sys(e, errno, "TLS");
	else if (!start(s, conf))
		r = err_set(e, -ENOMEM, "no_memory", "start TLS");
	else
		r = loop_add(s->loop, &s->src, s->fd, EPOLLIN | EPOLLOUT,
			     on_socket, s, e);
	if (r < 0) {
		ERR_clear_error();
		drop(s);
		return r;
	}
	s->timer = (struct loop_timer){.fn = on_late, .arg = s};
	loop_timer_set(s->loop, &s->timer, clock_ms() + ms);
	link_up(s);
	*ret = s;
	return 0;
}

void tls_stream_free(struct tls_stream *s)
{
	if (!s)
		return;
	if (s->up && !s->broken) {
		(void)SSL_shutdown(s->ssl);
		ERR_clear_error();
	}
	loop_del(s->loop, &s->src);
	loop_timer_set(s->loop, &s->timer, 0);
	*s->pprev = s->next;
	if (s->next)
		s->next->pprev = s->pprev;
	drop(s);
}

const struct tls_ident *tls_stream_peer(const struct tls_stream *s)
{
	return s->up ? &s->peer : NULL;
}

ssize_t tls_stream_read(struct tls_stream *s, void *data, size_t cap,
			struct err *e)
{
	int n, why, errnum;

	s->read_wants_write = false;
	if (s->broken)
		return err_set(e, -ECONNRESET, "io", "TLS: broken off");
	ERR_clear_error();
	errno = 0;
	n = SSL_read(s->ssl, data, cap > INT_MAX ? INT_MAX : (int)cap);
	errnum = errno;
	s->heard |= n > 0;
	if (n > 0)
		return n;
	why = SSL_get_error(s->ssl, n);
	switch (why) {
	case SSL_ERROR_ZERO_RETURN:
		return 0;
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		s->read_wants_write = why == SSL_ERROR_WANT_WRITE;
		return err_sys(e, EAGAIN, "TLS");
	default:
		return failure(s, why, errnum, e);
	}
}

ssize_t tls_stream_write(struct tls_stream *s, const void *data, size_t len,
			 struct err *e)
{
	int n, why, errnum;

	s->write_wants_read = false;
	if (s->broken)
		return err_set(e, -ECONNRESET, "io", "TLS: broken off");
	if (len == 0)
		return 0;
	ERR_clear_error();
	errno = 0;
	n = SSL_write(s->ssl, data, len > INT_MAX ? INT_MAX : (int)len);
	errnum = errno;
	if (n > 0)
		return n;
	why = SSL_get_error(s->ssl, n);
	switch (why) {
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		s->write_wants_read = why == SSL_ERROR_WANT_READ;
		return err_sys(e, EAGAIN, "TLS");
	default:
		return failure(s, why, errnum, e);
	}
}

int tls_stream_end(struct tls_stream *s)
{
	int n, why;

	if (s->broken)
		return -ECONNRESET;
	ERR_clear_error();
	n = SSL_shutdown(s->ssl);
	if (n >= 0) {
		(void)shutdown(s->fd, SHUT_WR);
		return 0;
	}
	why = SSL_get_error(s->ssl, n);
	ERR_clear_error();
	return why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ
		       ? -EAGAIN
		       : -ECONNRESET;
}

void tls_stream_watch(struct tls_stream *s, bool in, bool out)
{
	s->in = in;
	s->out = out;
	rearm(s);
}
