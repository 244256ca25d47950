/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <openssl/evp.h>
#include <unistd.h>

#include "img/sha256.h"

struct sha256 {
	EVP_MD *md; /* looked up once: that takes longer than a small file */
	EVP_MD_CTX *ctx;
};

void sha256_free(struct sha256 *h)
{
	if (!h)
		return;
	EVP_MD_CTX_free(h->ctx);
	EVP_MD_free(h->md);
	free(h);
}

struct sha256 *sha256_new(void)
{
	struct sha256 *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->md = EVP_MD_fetch(NULL, "SHA256", NULL);
	h->ctx = EVP_MD_CTX_new();
	/* The first one allocates; later ones reset what is there. */
	if (!h->md || !h->ctx || !EVP_DigestInit_ex2(h->ctx, h->md, NULL)) {
		sha256_free(h);
		return NULL;
	}
	return h;
}

/*
 * The functions below say 0 only for a context that was not set up or a result
 * of another length: mistakes of ours.
 */
void sha256_add(struct sha256 *h, const void *data, size_t len)
{
	int good = EVP_DigestUpdate(h->ctx, data, len);

	assert(good == 1);
}

void sha256_end(struct sha256 *h, struct digest *ret)
{
	unsigned len = 0;
	int good;

	good = EVP_DigestFinal_ex(h->ctx, ret->b, &len);
	assert(good == 1 && len == DIGEST_LEN);
	good = EVP_DigestInit_ex2(h->ctx, NULL, NULL);
	assert(good == 1);
}

int sha256_of(const void *data, size_t len, struct digest *ret)
{
	auto_sha256 struct sha256 *h = sha256_new();

	if (!h)
		return -ENOMEM;
	sha256_add(h, data, len);
	sha256_end(h, ret);
	return 0;
}

int sha256_fd(int fd, struct digest *ret, struct err *e)
{
	const size_t size = 256 * 1024;
	auto_sha256 struct sha256 *h = sha256_new();
	auto_free char *buf = malloc(size);
	off_t off = 0;
	ssize_t n;

	if (!h || !buf)
		return err_sys(e, ENOMEM, "digest");
	for (;;) {
		n = pread(fd, buf, size, off);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read");
		if (n == 0)
			break;
		sha256_add(h, buf, (size_t)n);
		off += n;
	}
	sha256_end(h, ret);
	return 0;
}
