/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tls/tls_priv.h"

#define PEM_MAX	  (1024 * 1024)
#define TICKET_S  300 /* how long a session may be resumed */
#define CHAIN_MAX 2
#define SESSIONS  "dsec-serve"

/* --- files --------------------------------------------------------------- */

static int read_pem(int dirfd, const char *path, bool secret, char **ret,
		    struct err *e)
{
	auto_close int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	size_t len;

	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (secret && fstat(fd, &st) < 0)
		return err_sys(e, errno, "look at '%s'", path);
	if (secret && (st.st_mode & 077))
		return err_set(e, -EPERM, "configuration",
			       "'%s' is a key that others may read: chmod 600",
			       path);
	return fd_read_all(fd, PEM_MAX, ret, &len, e);
}

int tls_pem_read(int dirfd, const struct tls_files *files, struct tls_pem *ret,
		 struct err *e)
{
	struct tls_pem pem = {0};
	int r;

	r = read_pem(dirfd, files->ca, false, &pem.ca, e);
	if (r == 0)
		r = read_pem(dirfd, files->cert, false, &pem.cert, e);
	if (r == 0)
		r = read_pem(dirfd, files->key, true, &pem.key, e);
	if (r == 0 && files->crl)
		r = read_pem(dirfd, files->crl, false, &pem.crl, e);
	if (r < 0)
		tls_pem_done(&pem);
	else
		*ret = pem;
	return r;
}

void tls_pem_done(struct tls_pem *pem)
{
	if (pem->key)
		explicit_bzero(pem->key, strlen(pem->key));
	free(pem->ca);
	free(pem->cert);
	free(pem->key);
	free(pem->crl);
	*pem = (struct tls_pem){0};
}

/* --- what is in them ------------------------------------------------------ */

static int bad(struct err *e, const char *what)
{
	unsigned long code = ERR_get_error();
	const char *why = code ? ERR_reason_error_string(code) : NULL;

	ERR_clear_error();
	return err_set(e, -EINVAL, "configuration", "%s%s%s", what,
		       why ? ": " : "", why ? why : "");
}

static BIO *bio_of(const char *text)
{
	return BIO_new_mem_buf(text, -1);
}

/* Did reading one after the other stop because there was no more?  What cannot
 * be read might be what somebody was revoked by. */
static bool at_end(void)
{
	unsigned long code = ERR_peek_last_error();

	return ERR_GET_LIB(code) == ERR_LIB_PEM &&
	       ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
}

static int add_authorities(X509_STORE *store, const char *text, struct err *e)
{
	BIO *bio = bio_of(text);
	bool good = bio != NULL;
	unsigned n = 0;
	X509 *cert;

	while (good && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
		good = X509_check_ca(cert) > 0 &&
		       X509_STORE_add_cert(store, cert) == 1;
		X509_free(cert);
		n++;
	}
	good = good && n > 0 && at_end();
	BIO_free(bio);
	ERR_clear_error();
	return good ? 0
		    : bad(e, "the authorities' certificates cannot be used");
}

static int use_own(SSL_CTX *ctx, X509 *cert, EVP_PKEY *key, struct err *e)
{
	if (SSL_CTX_use_certificate(ctx, cert) != 1 ||
	    SSL_CTX_use_PrivateKey(ctx, key) != 1 ||
	    SSL_CTX_check_private_key(ctx) != 1)
		return bad(e, "certificate and key do not belong together");
	return 0;
}

/* A session may be resumed for a while; what that may be is looked at anew
 * then.  Its key lives as long as this context. */
static void set_sessions(SSL_CTX *ctx)
{
	SSL_CTX_set_session_id_context(ctx, (const unsigned char *)SESSIONS,
				       sizeof(SESSIONS) - 1);
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_timeout(ctx, TICKET_S);
	SSL_CTX_set_num_tickets(ctx, 1);
}

static int make_ctx(const SSL_METHOD *method, X509 *cert, EVP_PKEY *key,
		    const char *ca, SSL_CTX **ret, struct err *e)
{
	SSL_CTX *ctx = SSL_CTX_new(method);
	int r;

	if (!ctx)
		return err_sys(e, ENOMEM, "TLS");
	SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
	SSL_CTX_set_verify(ctx,
			   SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
			   tls_verify);
	SSL_CTX_set_verify_depth(ctx, CHAIN_MAX);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
				      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				      SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_options(ctx,
			    SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
	set_sessions(ctx);
	r = add_authorities(SSL_CTX_get_cert_store(ctx), ca, e);
	if (r == 0)
		r = use_own(ctx, cert, key, e);
	if (r < 0)
		SSL_CTX_free(ctx);
	else
		*ret = ctx;
	return r;
}

/* --- who is revoked ------------------------------------------------------- */

static bool is_signed(X509_STORE *store, X509_CRL *crl)
{
	STACK_OF(X509_OBJECT) *objs = X509_STORE_get0_objects(store);

	for (int i = 0; i < sk_X509_OBJECT_num(objs); i++) {
		X509 *ca = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(objs, i));

		if (ca &&
		    X509_NAME_cmp(X509_get_subject_name(ca),
				  X509_CRL_get_issuer(crl)) == 0 &&
		    X509_CRL_verify(crl, X509_get0_pubkey(ca)) == 1)
			return true;
	}
	return false;
}

static int load_crls(struct tls_set *set, const char *text, struct err *e)
{
	X509_STORE *store = SSL_CTX_get_cert_store(set->server);
	BIO *bio = text ? bio_of(text) : NULL;
	bool good = bio || !text;
	X509_CRL *crl;

	set->crls = sk_X509_CRL_new_null();
	good = good && set->crls;
	while (bio && good &&
	       (crl = PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL))) {
		good = is_signed(store, crl) &&
		       sk_X509_CRL_push(set->crls, crl) > 0;
		if (!good)
			X509_CRL_free(crl);
	}
	if (bio && good)
		good = sk_X509_CRL_num(set->crls) > 0 && at_end();
	BIO_free(bio);
	ERR_clear_error();
	return good ? 0
		    : err_set(e, -EINVAL, "configuration",
			      "the revocation list is not one that an "
			      "authority of ours has signed");
}

bool tls_set_revoked(const struct tls_set *set, X509 *cert)
{
	X509_REVOKED *found;

	for (int i = 0; i < sk_X509_CRL_num(set->crls); i++) {
		X509_CRL *crl = sk_X509_CRL_value(set->crls, i);

		if (X509_NAME_cmp(X509_CRL_get_issuer(crl),
				  X509_get_issuer_name(cert)) == 0 &&
		    X509_CRL_get0_by_cert(crl, &found, cert) == 1)
			return true;
	}
	return false;
}

/* --- a set ---------------------------------------------------------------- */

void tls_set_done(struct tls_set *set)
{
	SSL_CTX_free(set->server);
	SSL_CTX_free(set->client);
	sk_X509_CRL_pop_free(set->crls, X509_CRL_free);
	*set = (struct tls_set){0};
}

static int load(const struct tls_pem *pem, X509 *cert, EVP_PKEY *key,
		struct tls_set *set, struct err *e)
{
	int r;

	if (!cert || !key)
		return bad(e, cert ? "our key cannot be read"
				   : "our certificate cannot be read");
	r = tls_ident_of(cert, &set->own, e);
	if (r < 0)
		return err_set(e, -EINVAL, "configuration",
			       "our certificate has no identity of the form "
			       "dsec://KIND/NAME");
	set->own_from_ms = tls_not_before_ms(cert);
	set->own_until_ms = tls_not_after_ms(cert);
	r = make_ctx(TLS_server_method(), cert, key, pem->ca, &set->server, e);
	if (r == 0)
		r = make_ctx(TLS_client_method(), cert, key, pem->ca,
			     &set->client, e);
	return r < 0 ? r : load_crls(set, pem->crl, e);
}

int tls_set_load(const struct tls_pem *pem, struct tls_set *ret, struct err *e)
{
	BIO *certs = bio_of(pem->cert), *keys = bio_of(pem->key);
	struct tls_set set = {0};
	EVP_PKEY *key = NULL;
	X509 *cert = NULL;
	int r;

	ERR_clear_error();
	if (certs && keys) {
		cert = PEM_read_bio_X509(certs, NULL, NULL, NULL);
		key = PEM_read_bio_PrivateKey(keys, NULL, NULL, (void *)"");
	}
	r = load(pem, cert, key, &set, e);
	X509_free(cert);
	EVP_PKEY_free(key);
	BIO_free(certs);
	BIO_free(keys);
	if (r < 0)
		tls_set_done(&set);
	else
		*ret = set;
	return r;
}
