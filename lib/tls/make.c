/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "tls/make.h"

#define SERIAL_LEN   16
#define BACK_S	     3600 /* clocks of a cluster differ */
#define DAY_S	     86400
#define CRL_DAYS     3650 /* it is read anew, not waited for */
#define HOSTS_MAX    32
#define HOST_LEN_MAX 253

static int failed(struct err *e, const char *what)
{
	unsigned long code = ERR_get_error();
	const char *why = code ? ERR_reason_error_string(code) : NULL;

	ERR_clear_error();
	return err_set(e, -EIO, "system", "%s%s%s", what, why ? ": " : "",
		       why ? why : "");
}

/* --- texts ---------------------------------------------------------------- */

static X509 *cert_of(const char *pem)
{
	BIO *bio = BIO_new_mem_buf(pem, -1);
	X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;

	BIO_free(bio);
	return cert;
}

static EVP_PKEY *key_of(const char *pem)
{
	BIO *bio = BIO_new_mem_buf(pem, -1);
	EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL,
						      (void *)"")
			    : NULL;

	BIO_free(bio);
	return key;
}

static X509_CRL *crl_of(const char *pem)
{
	BIO *bio = BIO_new_mem_buf(pem, -1);
	X509_CRL *crl = bio ? PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL)
			    : NULL;

	BIO_free(bio);
	return crl;
}

/* What was written to ${bio}, which is freed. */
static int text_of(BIO *bio, int good, char **ret, struct err *e)
{
	char *data, *text = NULL;
	long len = bio ? BIO_get_mem_data(bio, &data) : 0;

	if (good == 1 && len > 0)
		text = strndup(data, (size_t)len);
	BIO_free(bio);
	if (!text)
		return failed(e, "make a certificate");
	*ret = text;
	return 0;
}

static int cert_text(const X509 *cert, char **ret, struct err *e)
{
	BIO *bio = BIO_new(BIO_s_mem());

	return text_of(bio, bio ? PEM_write_bio_X509(bio, cert) : 0, ret, e);
}

int make_key(char **ret_pem, struct err *e)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	BIO *bio = BIO_new(BIO_s_secmem());
	int good = key && bio ? PEM_write_bio_PrivateKey(bio, key, NULL, NULL,
							 0, NULL, NULL)
			      : 0;

	EVP_PKEY_free(key);
	return text_of(bio, good, ret_pem, e);
}

/* --- certificates ----------------------------------------------------------
 */

static bool set_serial(X509 *cert)
{
	unsigned char raw[SERIAL_LEN];
	BIGNUM *n;
	bool good;

	if (RAND_bytes(raw, sizeof(raw)) != 1)
		return false;
	raw[0] &= 0x7f;
	raw[0] |= 0x40;
	n = BN_bin2bn(raw, sizeof(raw), NULL);
	good = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert));
	BN_free(n);
	return good;
}

static bool set_days(X509 *cert, unsigned days)
{
	return X509_gmtime_adj(X509_getm_notBefore(cert), -BACK_S) &&
	       X509_time_adj_ex(X509_getm_notAfter(cert), (int)days, 0, NULL);
}

static bool add_ext(X509 *cert, X509 *issuer, int nid, const char *value)
{
	X509V3_CTX ctx;
	X509_EXTENSION *ext;
	bool good;

	X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
	ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
	good = ext && X509_add_ext(cert, ext, -1) == 1;
	X509_EXTENSION_free(ext);
	return good;
}

static bool set_name(X509 *cert, const char *name)
{
	return X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN",
					  MBSTRING_UTF8,
					  (const unsigned char *)name, -1, -1,
					  0) == 1;
}

static X509 *new_cert(EVP_PKEY *key, unsigned days)
{
	X509 *cert = X509_new();

	if (cert && X509_set_version(cert, X509_VERSION_3) == 1 &&
	    set_serial(cert) && set_days(cert, days) &&
	    X509_set_pubkey(cert, key) == 1)
		return cert;
	X509_free(cert);
	return NULL;
}

int make_ca(const char *key, const char *name, unsigned days, char **ret_pem,
	    struct err *e)
{
	EVP_PKEY *k = key_of(key);
	X509 *cert = k ? new_cert(k, days) : NULL;
	int r;

	if (cert && set_name(cert, name) &&
	    X509_set_issuer_name(cert, X509_get_subject_name(cert)) == 1 &&
	    add_ext(cert, cert, NID_basic_constraints,
		    "critical,CA:TRUE,pathlen:0") &&
	    add_ext(cert, cert, NID_key_usage,
		    "critical,keyCertSign,cRLSign") &&
	    add_ext(cert, cert, NID_subject_key_identifier, "hash") &&
	    X509_sign(cert, k, EVP_sha256()) > 0)
		r = cert_text(cert, ret_pem, e);
	else
		r = failed(e, "make an authority");
	X509_free(cert);
	EVP_PKEY_free(k);
	return r;
}

static const char *usage_of(enum tls_kind kind)
{
	return kind == TLS_NODE	    ? "serverAuth"
	       : kind == TLS_CLIENT ? "clientAuth"
				    : "serverAuth,clientAuth";
}

static bool host_ok(const char *host, bool *ret_ip)
{
	unsigned char buf[sizeof(struct in6_addr)];

	*ret_ip = inet_pton(AF_INET, host, buf) == 1 ||
		  inet_pton(AF_INET6, host, buf) == 1;
	/* It goes into a list whose marks are commas. */
	return *ret_ip ||
	       (*host && strlen(host) <= HOST_LEN_MAX &&
		strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJK"
			     "LMNOPQRSTUVWXYZ0123456789.-") == strlen(host));
}

/* IPv6 last: socat 1.7, asked for an IPv4 address, gives up at the first one.
 */
static int add_hosts(const struct make_cert *want, bool ipv6, struct buf *b)
{
	int r = 0;
	bool ip;

	for (size_t i = 0; r == 0 && i < want->nhosts; i++) {
		host_ok(want->hosts[i], &ip);
		if (ipv6 == (strchr(want->hosts[i], ':') != NULL))
			r = buf_addf(b, ",%s:%s", ip ? "IP" : "DNS",
				     want->hosts[i]);
	}
	return r;
}

static int alt_names(const struct make_cert *want, struct buf *b, struct err *e)
{
	char uri[TLS_URI_MAX];
	bool ip;
	int r;

	tls_ident_uri(&want->ident, uri);
	r = buf_addf(b, "URI:%s", uri);
	if (want->nhosts > HOSTS_MAX)
		return err_set(e, -EINVAL, "bad_value",
			       "%d hosts of a certificate at most", HOSTS_MAX);
	for (size_t i = 0; i < want->nhosts; i++)
		if (!host_ok(want->hosts[i], &ip))
			return err_set(e, -EINVAL, "bad_value",
				       "'%s' is neither a host's name nor an "
				       "address",
				       want->hosts[i]);
	if (r == 0)
		r = add_hosts(want, false, b);
	if (r == 0)
		r = add_hosts(want, true, b);
	return r < 0 ? err_sys(e, ENOMEM, "make a certificate") : 0;
}

/* All but its names, and signed. */
static bool complete(X509 *cert, X509 *ca, EVP_PKEY *ca_key,
		     const struct tls_ident *id)
{
	return X509_set_issuer_name(cert, X509_get_subject_name(ca)) == 1 &&
	       set_name(cert, id->name) &&
	       add_ext(cert, ca, NID_basic_constraints, "critical,CA:FALSE") &&
	       add_ext(cert, ca, NID_key_usage, "critical,digitalSignature") &&
	       add_ext(cert, ca, NID_ext_key_usage, usage_of(id->kind)) &&
	       add_ext(cert, ca, NID_authority_key_identifier, "keyid") &&
	       X509_sign(cert, ca_key, EVP_sha256()) > 0;
}

/* Of one of the authorities the key is. */
static X509 *issuer_of(const char *ca, EVP_PKEY *ca_key)
{
	BIO *bio = BIO_new_mem_buf(ca, -1);
	X509 *cert = NULL;

	while (bio && ca_key &&
	       (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL)) &&
	       X509_check_private_key(cert, ca_key) != 1) {
		X509_free(cert);
		cert = NULL;
	}
	BIO_free(bio);
	ERR_clear_error();
	return cert;
}

static int issue(const char *ca, const char *ca_key, EVP_PKEY *key,
		 const struct make_cert *want, const GENERAL_NAMES *names,
		 char **ret_pem, struct err *e)
{
	EVP_PKEY *signer = key_of(ca_key);
	X509 *issuer = issuer_of(ca, signer);
	X509 *cert = key ? new_cert(key, want->days) : NULL;
	auto_buf struct buf alt = {0};
	bool good = false;
	int r;

	r = names ? 0 : alt_names(want, &alt, e);
	if (r == 0 && !issuer)
		r = err_set(e, -EINVAL, "configuration",
			    "the authority's key and certificate do not "
			    "belong together");
	if (r == 0 && cert)
		good = names ? X509_add1_ext_i2d(cert, NID_subject_alt_name,
						 (void *)(uintptr_t)names, 0,
						 X509V3_ADD_DEFAULT) == 1
			     : add_ext(cert, issuer, NID_subject_alt_name,
				       alt.data);
	if (r == 0 && good && complete(cert, issuer, signer, &want->ident))
		r = cert_text(cert, ret_pem, e);
	else if (r == 0)
		r = failed(e, "make a certificate");
	X509_free(cert);
	X509_free(issuer);
	EVP_PKEY_free(signer);
	return r;
}

int make_cert(const char *ca, const char *ca_key, const struct make_cert *want,
	      char **ret_pem, struct err *e)
{
	EVP_PKEY *key = key_of(want->key);
	int r = issue(ca, ca_key, key, want, NULL, ret_pem, e);

	EVP_PKEY_free(key);
	return r;
}

int make_again(const char *ca, const char *ca_key,
	       const struct make_again *want, char **ret_pem, struct err *e)
{
	struct make_cert as = {.days = want->days};
	EVP_PKEY *key = key_of(want->key);
	X509 *cert = cert_of(want->cert);
	GENERAL_NAMES *names = NULL;
	int r;

	if (!key || !cert || X509_check_private_key(cert, key) != 1)
		r = failed(e, "certificate and key do not belong together");
	else
		r = tls_ident_of(cert, &as.ident, e);
	if (r == 0) {
		names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL,
					 NULL);
		r = issue(ca, ca_key, key, &as, names, ret_pem, e);
	}
	GENERAL_NAMES_free(names);
	X509_free(cert);
	EVP_PKEY_free(key);
	return r;
}

int make_look(const char *pem, struct make_looked *ret, struct err *e)
{
	X509 *cert = cert_of(pem);
	struct make_looked look = {0};
	int r;

	if (!cert)
		return failed(e, "not a certificate");
	r = tls_ident_of(cert, &look.ident, e);
	look.from_ms = tls_not_before_ms(cert);
	look.until_ms = tls_not_after_ms(cert);
	X509_free(cert);
	if (r == 0)
		*ret = look;
	return r;
}

/* --- revocation ------------------------------------------------------------
 */

static bool add_revoked(X509_CRL *crl, const ASN1_INTEGER *serial,
			const ASN1_TIME *at)
{
	X509_REVOKED *rev = X509_REVOKED_new();

	if (rev &&
	    X509_REVOKED_set_serialNumber(rev,
					  (ASN1_INTEGER *)(uintptr_t)serial) ==
		    1 &&
	    X509_REVOKED_set_revocationDate(rev, (ASN1_TIME *)(uintptr_t)at) ==
		    1 &&
	    X509_CRL_add0_revoked(crl, rev) == 1)
		return true;
	X509_REVOKED_free(rev);
	return false;
}

static bool copy_revoked(X509_CRL *crl, X509_CRL *was)
{
	STACK_OF(X509_REVOKED) *old = X509_CRL_get_REVOKED(was);

	for (int i = 0; i < sk_X509_REVOKED_num(old); i++) {
		const X509_REVOKED *rev = sk_X509_REVOKED_value(old, i);

		if (!add_revoked(crl, X509_REVOKED_get0_serialNumber(rev),
				 X509_REVOKED_get0_revocationDate(rev)))
			return false;
	}
	return true;
}

static bool date_crl(X509_CRL *crl, const X509 *issuer, ASN1_TIME *now)
{
	ASN1_TIME *next = X509_time_adj_ex(NULL, CRL_DAYS, 0, NULL);
	bool good;

	good = next && X509_CRL_set_version(crl, X509_CRL_VERSION_2) == 1 &&
	       X509_CRL_set_issuer_name(crl, X509_get_subject_name(issuer)) ==
		       1 &&
	       X509_CRL_set1_lastUpdate(crl, now) == 1 &&
	       X509_CRL_set1_nextUpdate(crl, next) == 1;
	ASN1_TIME_free(next);
	return good;
}

static int crl_text(X509_CRL *crl, char **ret, struct err *e)
{
	BIO *bio = BIO_new(BIO_s_mem());

	return text_of(bio, bio ? PEM_write_bio_X509_CRL(bio, crl) : 0, ret, e);
}

int make_crl(const char *ca, const char *ca_key, const char *was,
	     const char *revoke, char **ret_pem, struct err *e)
{
	EVP_PKEY *signer = key_of(ca_key);
	X509 *issuer = issuer_of(ca, signer);
	X509 *gone = revoke ? cert_of(revoke) : NULL;
	X509_CRL *old = was ? crl_of(was) : NULL, *crl = X509_CRL_new();
	ASN1_TIME *now = X509_gmtime_adj(NULL, 0);
	X509_REVOKED *found;
	bool good = issuer && crl && now && (!revoke || gone) && (!was || old);
	int r;

	good = good && date_crl(crl, issuer, now);
	good = good && (!old || copy_revoked(crl, old));
	if (good && gone && (!old || !X509_CRL_get0_by_cert(old, &found, gone)))
		good = add_revoked(crl, X509_get0_serialNumber(gone), now);
	if (good && X509_CRL_sort(crl) == 1 &&
	    X509_CRL_sign(crl, signer, EVP_sha256()) > 0)
		r = crl_text(crl, ret_pem, e);
	else
		r = failed(e, "make a revocation list");
	ASN1_TIME_free(now);
	X509_CRL_free(crl);
	X509_CRL_free(old);
	X509_free(gone);
	X509_free(issuer);
	EVP_PKEY_free(signer);
	return r;
}

bool make_is_revoked(const char *crl, const char *cert)
{
	X509_CRL *list = crl_of(crl);
	X509 *x = cert_of(cert);
	X509_REVOKED *found;
	bool is = list && x && X509_CRL_get0_by_cert(list, &found, x) == 1;

	X509_CRL_free(list);
	X509_free(x);
	ERR_clear_error();
	return is;
}
