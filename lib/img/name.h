/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_NAME_H
#define IMG_NAME_H

#include "base/err.h"
#include "img/digest.h"

/*
 * What images are called: PROJECT/NAME:VERSION ("root/py:3.12"; several
 * segments of project as in "root/rl/py:1"), or a digest ("sha256:<hex>").
 * Each segment is [a-z0-9][a-z0-9._-]{0,127}, without ".."; those of project
 * and name do not end in ".json", which is how versions are files.  The version
 * "latest" is taken where none is given.  "host" is no name of the store.
 */
#define IMG_NAME_MAX 256

struct img_name {
	char project[IMG_NAME_MAX + 1]; /* "root/rl" */
	char name[129], version[129];
	bool by_digest;
	struct digest digest; /* of a manifest */
};

/* img_name_parse(s, ret, e): -EINVAL, code "bad_value". */
int img_name_parse(const char *s, struct img_name *ret, struct err *e);

/* img_name_str(n, buf): into buf[IMG_NAME_MAX + 1]; returns ${buf}. */
char *img_name_str(const struct img_name *n, char *buf);

/* img_segment_ok(s, len): one segment, by the rule above but for ".json". */
bool img_segment_ok(const char *s, size_t len);

#endif
