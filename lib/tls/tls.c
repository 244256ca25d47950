/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "tls/tls_priv.h"

int tls_new(const struct tls_pem *pem, struct tls **ret, struct err *e)
{
	struct tls *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return err_sys(e, ENOMEM, "TLS");
	r = tls_set_load(pem, &t->set, e);
	if (r < 0)
		free(t);
	else
		*ret = t;
	return r;
}

int tls_replace(struct tls *t, const struct tls_pem *pem, struct err *e)
{
	struct tls_set set;
	int r = tls_set_load(pem, &set, e);

	if (r < 0)
		return r;
	tls_set_done(&t->set);
	t->set = set;
	tls_sweep(t);
	return 0;
}

void tls_free(struct tls *t)
{
	if (!t)
		return;
	tls_set_done(&t->set);
	free(t);
}

const struct tls_ident *tls_own(const struct tls *t)
{
	return &t->set.own;
}

uint64_t tls_own_from_ms(const struct tls *t)
{
	return t->set.own_from_ms;
}

uint64_t tls_own_until_ms(const struct tls *t)
{
	return t->set.own_until_ms;
}

/* Is the peer still one to talk to? */
static int look(struct tls_stream *s, uint64_t now_ms, struct err *e)
{
	const STACK_OF(X509) *chain = SSL_get_peer_cert_chain(s->ssl);
	X509 *cert;
	bool revoked;

	if (s->peer_until_ms <= now_ms)
		return err_set(e, -EKEYEXPIRED, "permission",
			       "the peer's certificate has expired");
	cert = SSL_get1_peer_certificate(s->ssl);
	revoked = !cert || tls_set_revoked(&s->tls->set, cert);
	X509_free(cert);
	/* Who signed it may be revoked as well. */
	for (int i = 0; i < sk_X509_num(chain); i++)
		revoked |= tls_set_revoked(&s->tls->set,
					   sk_X509_value(chain, i));
	return revoked ? err_set(e, -EKEYREVOKED, "permission",
				 "the peer's certificate is revoked")
		       : 0;
}

void tls_sweep(struct tls *t)
{
	uint64_t now = clock_wall_ms();
	struct tls_stream *s, *next;
	struct err e = {0};

	t->round++;
	for (s = t->streams; s; s = next) {
		next = s->next;
		if (s->round == t->round)
			continue;
		s->round = t->round;
		if (!s->up || s->broken || look(s, now, &e) == 0)
			continue;
		s->broken = true;
		s->ops->lost(s->arg, &e);
		/* Any of them may be gone now. */
		next = t->streams;
	}
}
