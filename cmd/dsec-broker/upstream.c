/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "broker.h"
#include "net/node.h"

#define READ_MIN 4096
#define NODE_MS	 10000 /* how old its list of addresses may be */
#define NEXT_MS	 400
#define DIAL_MS	 10000

#define UNRESOLVED "the upstream's name cannot be resolved"

/* --- which addresses ----------------------------------------------------- */

static void read_node(struct server *s)
{
	if (s->node_at_ms && clock_ms() - s->node_at_ms < NODE_MS)
		return;
	if (node_addrs(s->deny, NULL) == 0)
		s->node_at_ms = clock_ms();
}

static bool may(void *arg, const struct netaddr *addr)
{
	struct upstream *up = arg;

	return !netdeny_denies(up->c->s->deny, addr, NETPOL_TCP,
			       up->c->ep->port);
}

/* --- TLS ----------------------------------------------------------------- */

/* For the next connection to the same endpoint. */
static int on_session(SSL *ssl, SSL_SESSION *session)
{
	struct upstream *up = SSL_get_app_data(ssl);
	struct server *s = up->c->s;
	size_t i;

	if (!up->c->ep)
		return 0;
	i = (size_t)(up->c->ep - s->conf->endpoints);
	SSL_SESSION_free(s->sessions[i]);
	s->sessions[i] = session;
	return 1;
}

/* "5ed36f99.0": what a directory of certificates calls them by. */
static bool is_hashed(const char *name)
{
	return strspn(name, "0123456789abcdef") == 8 && name[8] == '.' &&
	       name[9] && !name[9 + strspn(name + 9, "0123456789")];
}

static void load_dir(SSL_CTX *ctx, const char *dir)
{
	DIR *d = opendir(dir);
	char path[PATH_MAX];
	struct dirent *en;

	while (d && (en = readdir(d)))
		if (is_hashed(en->d_name) &&
		    snprintf(path, sizeof(path), "%s/%s", dir, en->d_name) <
			    PATH_MAX)
			(void)SSL_CTX_load_verify_locations(ctx, path, NULL);
	if (d)
		closedir(d);
}

/*
 * The certificates of the system, all of them now: OpenSSL by itself looks into
 * their directory when it needs one, and then no file can be opened any more.
 */
static bool load_system(SSL_CTX *ctx)
{
	const char *dirs = getenv(X509_get_default_cert_dir_env());
	auto_free char *list = strdup(dirs ? dirs
					   : X509_get_default_cert_dir());
	char *dir, *rest = list;

	if (SSL_CTX_set_default_verify_file(ctx) != 1)
		return false;
	while ((dir = strsep(&rest, ":")))
		load_dir(ctx, dir);
	ERR_clear_error();
	return sk_X509_OBJECT_num(X509_STORE_get0_objects(
		       SSL_CTX_get_cert_store(ctx))) > 0;
}

int tls_new(const char *ca, SSL_CTX **ret, struct err *e)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	bool good;

	if (!ctx)
		return err_sys(e, ENOMEM, "TLS");
	SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
				      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				      SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT |
						    SSL_SESS_CACHE_NO_INTERNAL);
	SSL_CTX_sess_set_new_cb(ctx, on_session);
	good = ca ? SSL_CTX_load_verify_locations(ctx, ca, NULL) == 1
		  : load_system(ctx);
	if (!good) {
		SSL_CTX_free(ctx);
		return err_set(e, -EINVAL, "configuration",
			       "broker.json: certificates of '%s'",
			       ca ? ca : "the system");
	}
	*ret = ctx;
	return 0;
}

static void lost(struct upstream *up, int status, const char *why)
{
	conn_fail(up->c, status, "failed", why);
}

/* Not connected, not trusted, or broken off. */
static const char *tls_why(SSL *ssl)
{
	long r = SSL_get_verify_result(ssl);

	return r != X509_V_OK ? X509_verify_cert_error_string(r)
			      : "TLS with the upstream failed";
}

static bool start_tls(struct upstream *up)
{
	const struct broker_endpoint *ep = up->c->ep;
	struct server *s = up->c->s;
	SSL_SESSION *session = s->sessions[ep - s->conf->endpoints];

	up->ssl = SSL_new(s->tls);
	if (!up->ssl || SSL_set_fd(up->ssl, up->fd) != 1 ||
	    SSL_set_tlsext_host_name(up->ssl, ep->host) != 1 ||
	    SSL_set1_host(up->ssl, ep->host) != 1)
		return false;
	SSL_set_app_data(up->ssl, up);
	SSL_set_hostflags(up->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	SSL_set_connect_state(up->ssl);
	if (session)
		SSL_set_session(up->ssl, session);
	return true;
}

static void on_socket(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct upstream *up = s->arg;

	(void)l, (void)events;
	conn_run(up->c);
}

static void on_dialed(void *arg, int fd, const struct netaddr *addr)
{
	struct upstream *up = arg;
	struct conn *c = up->c;

	(void)addr;
	up->dial = NULL;
	if (fd == -EACCES) {
		conn_fail(c, 502, "denied",
			  "the upstream's address is always denied");
	} else if (fd < 0) {
		lost(up, 502, "the upstream cannot be connected to");
	} else {
		up->fd = fd;
		up->state = UP_SHAKE;
		if (!start_tls(up) ||
		    loop_add(c->s->loop, &up->src, fd, EPOLLIN | EPOLLOUT,
			     on_socket, up, NULL) < 0)
			lost(up, 503, "out of memory");
	}
	conn_run(c);
}

static const struct dial_ops dial_ops = {may, on_dialed};

static bool dial_to(struct upstream *up, const struct dns_addrs *addrs)
{
	struct netaddr list[DIAL_ADDRS];
	const struct dial_conf conf = {
		.loop = up->c->s->loop,
		.addrs = list,
		.naddrs = addrs->n < DIAL_ADDRS ? addrs->n : DIAL_ADDRS,
		.port = up->c->ep->port,
		.deadline_ms = DIAL_MS,
		.next_ms = NEXT_MS,
		.ops = &dial_ops,
		.arg = up,
	};

	read_node(up->c->s);
	memset(list, 0, sizeof(list));
	for (size_t i = 0; i < conf.naddrs; i++) {
		list[i].v6 = addrs->family == AF_INET6;
		if (list[i].v6)
			memcpy(list[i].b, &addrs->v6[i], 16);
		else
			memcpy(list[i].b, &addrs->v4[i], 4);
	}
	up->state = UP_DIAL;
	return dial_new(&conf, &up->dial, NULL) == 0;
}

/* --- its name ------------------------------------------------------------ */

static bool resolve(struct upstream *up, sa_family_t family);

/* False: it failed. */
static bool take_result(struct upstream *up, const struct resolver_result *res)
{
	if (res->status == RESOLVER_OK)
		return dial_to(up, &res->addrs);
	if (res->status == RESOLVER_NONE && up->family == AF_INET)
		return resolve(up, AF_INET6);
	return false;
}

static void on_result(struct resolver_wait *w,
		      const struct resolver_result *res)
{
	struct upstream *up = w->arg;
	struct conn *c = up->c;

	if (!take_result(up, res))
		lost(up, 502, UNRESOLVED);
	conn_run(c);
}

static bool resolve(struct upstream *up, sa_family_t family)
{
	const struct resolver_result *res;
	int r;

	up->family = family;
	up->wait = (struct resolver_wait){.fn = on_result, .arg = up};
	r = resolver_ask(up->c->s->resolver, up->c->ep->host, family, &up->wait,
			 &res);
	return r == 1 ? take_result(up, res) : r == 0;
}

struct upstream *upstream_new(struct conn *c)
{
	struct upstream *up = calloc(1, sizeof(*up));

	if (!up)
		return NULL;
	up->c = c;
	up->fd = -1;
	return up;
}

void upstream_begin(struct upstream *up)
{
	if (!resolve(up, AF_INET))
		lost(up, 502, UNRESOLVED);
}

void upstream_free(struct upstream *up)
{
	struct loop *l;

	if (!up)
		return;
	l = up->c->s->loop;
	resolver_cancel(up->c->s->resolver, &up->wait);
	dial_free(up->dial);
	if (up->fd >= 0) {
		loop_del(l, &up->src);
		/* A session that did not end in order is not resumed. */
		if (up->state == UP_OPEN)
			(void)SSL_shutdown(up->ssl);
		SSL_free(up->ssl);
		fd_close(up->fd);
	}
	explicit_bzero(up, sizeof(*up));
	free(up);
}

/* --- bytes --------------------------------------------------------------- */

/* The handshake, as far as it goes; true: it is done. */
static bool shake(struct upstream *up)
{
	int n, why;

	ERR_clear_error();
	n = SSL_do_handshake(up->ssl);
	if (n == 1) {
		up->state = UP_OPEN;
		up->wants_write = false;
		return true;
	}
	why = SSL_get_error(up->ssl, n);
	up->wants_write = why == SSL_ERROR_WANT_WRITE;
	if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
		lost(up, 502, tls_why(up->ssl));
	return false;
}

static bool write_some(struct upstream *up)
{
	int n, why;

	if (!space_has(&up->out) || up->deaf)
		return false;
	ERR_clear_error();
	n = SSL_write(up->ssl, up->out.data + up->out.at,
		      (int)space_has(&up->out));
	if (n > 0) {
		space_used(&up->out, (size_t)n);
		space_pack(&up->out);
		return true;
	}
	why = SSL_get_error(up->ssl, n);
	if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
		return false;
	/* It may have answered before, and that is to be read. */
	up->deaf = true;
	space_used(&up->out, space_has(&up->out));
	return true;
}

static bool read_some(struct upstream *up)
{
	int n, why;

	if (space_left(&up->in) < READ_MIN)
		space_pack(&up->in);
	if (up->eof || space_left(&up->in) == 0)
		return false;
	ERR_clear_error();
	n = SSL_read(up->ssl, up->in.data + up->in.len,
		     (int)space_left(&up->in));
	if (n > 0) {
		up->in.len += (size_t)n;
		return true;
	}
	why = SSL_get_error(up->ssl, n);
	up->wants_write = why == SSL_ERROR_WANT_WRITE;
	if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
		return false;
	up->eof = true;
	up->torn = why != SSL_ERROR_ZERO_RETURN;
	return true;
}

bool upstream_io(struct upstream *up)
{
	bool moved = false;

	if (up->state < UP_SHAKE)
		return false;
	if (up->state == UP_SHAKE)
		return shake(up);
	moved |= write_some(up);
	moved |= read_some(up);
	return moved;
}

void upstream_watch(struct upstream *up)
{
	uint32_t events = 0;

	if (up->fd < 0)
		return;
	if (!up->eof && space_has(&up->in) < SPACE)
		events |= EPOLLIN;
	if (up->wants_write ||
	    (up->state == UP_OPEN && !up->deaf && space_has(&up->out)))
		events |= EPOLLOUT;
	if (loop_mod(up->c->s->loop, &up->src, events, NULL) < 0)
		up->c->dead = true;
}
