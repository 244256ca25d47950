/* SPDX-License-Identifier: Apache-2.0 */
/* Idempotency keys: a request is done once, and not by a try that is late. */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "box/key.h"

static struct tree tree;

/* Begin a request with that key and attempt: what comes of it; where it is the
 * first it ends with a record, or (fails) without. */
static int take(const char *key, const char *attempt, bool fails,
		const char **ret_code)
{
	auto_json json_t *req = json_pack("{s:i, s:s, s:s*}", "id", 1, "key",
					  key, "attempt", attempt);
	auto_json json_t *rec = NULL, *mine = json_pack("{s:b}", "ok", 1);
	struct err e = {0};
	struct key k;
	int r = key_begin(&k, &tree, req, KEY_NO_WAIT, &rec, &e);

	*ret_code = e.code;
	if (r != 0)
		return r;
	if (key_end(&k, fails ? NULL : mine, NULL) < 0)
		abort();
	key_done(&k);
	return 0;
}

static bool fence(const char *key, const char *attempt)
{
	bool known = false;

	if (key_fence(&tree, key, attempt, &known, NULL) < 0)
		abort();
	return known;
}

/* Whoever makes something dies, and another comes. */
static void test_making(void)
{
	static const char id[] = "abcdefghij234567abcd";
	auto_json json_t *req = json_pack("{s:s}", "key", "m");
	auto_json json_t *next = json_pack("{s:s}", "key", "n");
	auto_json json_t *mine = json_pack("{s:b}", "ok", 1);
	auto_json json_t *rec = NULL, *again = NULL;
	struct key k;

	if (key_begin(&k, &tree, req, -1, &rec, NULL) != 0 || *k.made ||
	    key_making(&k, id, NULL) < 0)
		abort();
	key_done(&k);
	ok(key_known(&tree, "m"), "what is being made is known");
	is_int(key_begin(&k, &tree, req, -1, &rec, NULL), 0,
	       "the next is not told of what is not done");
	is_str(k.made, id, "but of what it may be");
	if (ftruncate(k.lock, 0) < 0 || key_making(&k, id, NULL) < 0 ||
	    pwrite(k.lock, "\n{\"rec", 6, lseek(k.lock, 0, SEEK_END)) != 6)
		abort();
	key_done(&k);
	is_int(key_begin(&k, &tree, req, -1, &rec, NULL), 0,
	       "nor of a record that is torn");
	is_str(k.made, id, "which hides nothing");
	if (key_end(&k, mine, NULL) < 0)
		abort();
	key_done(&k);
	is_int(key_begin(&k, &tree, req, -1, &rec, NULL), 1,
	       "nor the record that is written in its place");
	if (key_begin(&k, &tree, next, -1, &again, NULL) != 0 ||
	    key_making(&k, id, NULL) < 0 || key_end(&k, mine, NULL) < 0)
		abort();
	key_done(&k);
	is_int(key_begin(&k, &tree, next, -1, &again, NULL), 1,
	       "one that is done is told of");
}

int main(void)
{
	char dir[] = "/tmp/dsec-key.XXXXXX", path[64];
	const char *code;
	struct key held, second;
	int stop = eventfd(1, EFD_CLOEXEC);
	struct err e = {0};
	auto_json json_t *req = json_pack("{s:s}", "key", "held");
	auto_json json_t *rec = NULL;

	if (!mkdtemp(dir))
		abort();
	tree.run = dir;

	is_int(take("a", NULL, false, &code), 0, "the first is done");
	is_int(take("a", NULL, false, &code), 1, "the second is told of it");
	ok(key_known(&tree, "a") && fence("a", "x"), "it is known");
	is_int(take("a", "x", false, &code), 1, "to whoever asks again, too");

	ok(!key_known(&tree, "b") && !fence("b", "x"), "another is not");
	ok(!key_known(&tree, "b"), "nor is it by being asked for");
	ok(take("b", NULL, false, &code) == -ECANCELED &&
		   !strcmp(code, "cancelled"),
	   "a first try that is late does nothing");
	ok(take("b", "y", false, &code) == -ECANCELED, "nor does another");
	is_int(take("b", "x", true, &code), 0, "the one that may, fails");
	ok(take("b", NULL, false, &code) == -ECANCELED,
	   "and that lets no other in");
	ok(!fence("b", "z"), "it is asked for again");
	ok(take("b", "x", false, &code) == -ECANCELED, "which takes its place");
	is_int(take("b", "z", false, &code), 0, "the last one does it");
	is_int(take("b", NULL, false, &code), 1, "then all are told of it");
	ok(fence("b", "q"), "and it is known");

	test_making();
	if (key_begin(&held, &tree, req, -1, &rec, NULL) != 0)
		abort();
	ok(fence("held", "x"), "one that is worked on is known");
	ok(key_begin(&second, &tree, req, stop, &rec, &e) == -ECANCELED &&
		   !strcmp(e.code, "cancelled"),
	   "who waits for it can be told to end");
	ok(key_begin(&second, &tree, req, KEY_NO_WAIT, &rec, NULL) == -EAGAIN,
	   "or does not wait");
	close(stop);
	key_done(&held);
	snprintf(path, sizeof(path), "rm -r %s", dir);
	if (system(path) != 0)
		abort();
	return tap_done();
}
