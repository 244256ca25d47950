/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "img/manifest.h"

#define HEX  "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define HEX2 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* Quotes as ' for reading. */
static json_t *parse(const char *text)
{
	auto_free char *copy = strdup(text);
	json_t *j = NULL;
	struct err e;

	if (!copy)
		abort();
	for (char *p = copy; (p = strchr(p, '\''));)
		*p = '"';
	if (json_parse(copy, strlen(copy), &j, &e) < 0) {
		printf("# %s: %s\n", text, e.msg);
		abort();
	}
	return j;
}

static const char good[] =
	"{'at':'/work/x','bytes':5,'config':{'cmd':['sh'],'env':{'A':'1'}},"
	"'devices':[{'blocks':7,'root':'" HEX "'},{'blocks':4294967294,"
	"'root':'" HEX2 "'}],'entries':3,'kind':'layer','layer':'workspace',"
	"'meta':{'digest':'" HEX2 "','size':4096},'new_bytes':9,"
	"'parents':['" HEX "'],'source':{'type':'tar'},'v':1}";

static void check_round(void)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};
	auto_json json_t *in = parse(good);
	auto_json json_t *out = NULL;
	auto_free char *text = NULL;
	auto_free char *text2 = NULL;
	size_t len = 0, len2 = 0;
	struct err e;

	is_int(layer_parse(in, &l, &e), 0, "a layer");
	is_int((long long)l.ndevices, 2, "its devices");
	is_int(l.devices[1].blocks, 4294967294, "as large as can be");
	is_str(l.at, "/work/x", "its place");
	is_int(layer_json(&l, &out, &e), 0, "written");
	ok(json_equal(in, out), "and the same");
	is_int(manifest_text(in, &text, &len, &e), 0, "as text");
	is_int(manifest_text(out, &text2, &len2, &e), 0, "the other");
	is_str(text, text2, "the same bytes");
	is_int((long long)len, (long long)strlen(text), "its length");
	for (char *p = text; (p = strchr(p, '"'));)
		*p = '\'';
	is_str(text, good, "sorted and compact");
	l.devices[1].root = l.devices[0].root;
	json_decref(steal_ptr(out));
	is_int(layer_json(&l, &out, &e), -EINVAL, "nothing bad is written");
}

/* Each replaces ${from} in the good one, once. */
/* clang-format off */
static const struct {
	const char *from, *to;
	bool fine;
} changes[] = {
	{"'at':'/work/x',", "", true},
	{"'parents':['" HEX "'],", "", true},
	{"'source':{'type':'tar'},", "", true},
	{"'config':{'cmd':['sh'],'env':{'A':'1'}},", "", true},
	{"'v':1", "'later':[1],'v':1", true},
	{"'cmd':['sh']", "'later':5", true},
	{"'v':1", "'v':2", false},
	{"'v':1", "'v':'1'", false},
	{"'v':1", "'w':1", false},
	{"'kind':'layer'", "'kind':'env'", false},
	{"'kind':'layer'", "'kind':5", false},
	{"'layer':'workspace'", "'layer':'x'", false},
	{"'layer':'workspace'", "'layer':null", false},
	{"'/work/x'", "'/'", false},
	{"'/work/x'", "''", false},
	{"'/work/x'", "'work'", false},
	{"'/work/x'", "'/work/'", false},
	{"'/work/x'", "'/work//x'", false},
	{"'/work/x'", "'/work/../x'", false},
	{"'/work/x'", "'/work/.'", false},
	{"'/work/x'", "'/..x/.y'", true},
	{"'/work/x'", "5", false},
	{"'bytes':5", "'bytes':-1", false},
	{"'bytes':5", "'bytes':5.0", false},
	{"'bytes':5,", "", false},
	{"'entries':3", "'entries':4294967296", false},
	{"'new_bytes':9", "'new_bytes':'9'", false},
	{"'blocks':7", "'blocks':0", false},
	{"'blocks':7", "'blocks':4294967295", false},
	{"'blocks':7", "'blocks':-7", false},
	{"'root':'" HEX "'", "'root':'" HEX2 "'", false},
	{"'root':'" HEX "'", "'root':'" HEX "0'", false},
	{"'root':'" HEX "'", "'root':'sha256:" HEX "'", false},
	{"'root':'" HEX "'", "'root':'../../../etc'", false},
	{"'size':4096", "'size':0", false},
	{"'size':4096", "'size':99999999999999", false},
	{"'digest':'" HEX2 "'", "'digest':'x'", false},
	{"{'digest':'" HEX2 "','size':4096}", "[]", false},
	{"['" HEX "']", "['" HEX "','" HEX "']", false},
	{"['" HEX "']", "['x']", false},
	{"['" HEX "']", "{}", false},
	{"{'cmd':['sh'],'env':{'A':'1'}}", "[]", false},
	{"{'A':'1'}", "{'A':1}", false},
	{"{'A':'1'}", "{'':'1'}", false},
	{"{'A':'1'}", "{'A=B':'1'}", false},
	{"{'A':'1'}", "['A=1']", false},
	{"['sh']", "'sh'", false},
	{"['sh']", "['sh',1]", false},
	{"{'type':'tar'}", "'tar'", false},
};
/* clang-format on */

static void check_changes(void)
{
	for (size_t i = 0; i < array_len(changes); i++) {
		auto_layer struct layer l = {.kind = LAYER_BASE};
		const char *at = strstr(good, changes[i].from);
		auto_json json_t *j = NULL;
		char text[2048];
		struct err e = {0};
		int r;

		if (!at)
			abort();
		snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good,
			 changes[i].to, at + strlen(changes[i].from));
		j = parse(text);
		r = layer_parse(j, &l, &e);
		ok(changes[i].fine
			   ? r == 0
			   : r == -EBADMSG && !strcmp(e.code, "image_damaged"),
		   "%s -> %s: %s", changes[i].from, changes[i].to, e.msg);
	}
}

static void check_many(void)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};
	auto_json json_t *j = parse(good);
	json_t *devices = json_object_get(j, "devices");
	char hex[DIGEST_HEX + 1];

	json_array_clear(devices);
	is_int(layer_parse(j, &l, NULL), 0, "no device at all");
	layer_done(&l);
	for (int i = 0; i < 256; i++) {
		snprintf(hex, sizeof(hex), "%064x", i);
		json_array_append_new(devices, json_pack("{s:s,s:i}", "root",
							 hex, "blocks", 1));
		if (i == 254)
			is_int(layer_parse(j, &l, NULL), 0, "255 devices");
	}
	layer_done(&l);
	is_int(layer_parse(j, &l, NULL), -EBADMSG, "256 are too many");
}

static void check_env(void)
{
	auto_json json_t *in = parse("{'v':1,'kind':'env','layers':['" HEX
				     "','" HEX2 "'],'config':{'user':'me'}}");
	auto_json json_t *out = NULL;
	auto_env struct env v = {.nlayers = 0};
	static const char *const bad[] = {
		"{'v':1,'kind':'env','layers':[]}",
		"{'v':1,'kind':'env'}",
		"{'v':1,'kind':'env','layers':'" HEX "'}",
		"{'v':1,'kind':'env','layers':['" HEX "','" HEX "']}",
		"{'v':1,'kind':'env','layers':['" HEX "'],'config':[]}",
		"{'v':1,'kind':'env','layers':['" HEX "'],'config':{'user':1}}",
		"{'v':1,'kind':'layer','layers':['" HEX "']}",
		"{}",
	};

	ok(manifest_is_env(in), "an environment");
	is_int(env_parse(in, &v, NULL), 0, "parsed");
	is_int((long long)v.nlayers, 2, "its layers");
	is_int(env_json(&v, &out, NULL), 0, "written");
	ok(json_equal(in, out), "and the same");
	for (size_t i = 0; i < array_len(bad); i++) {
		auto_json json_t *j = parse(bad[i]);
		auto_env struct env none = {.nlayers = 0};

		is_int(env_parse(j, &none, NULL), -EBADMSG, bad[i]);
	}
}

static void check_join(void)
{
	auto_json json_t *low = parse("{'env':{'A':'1','B':'2'},'user':'low',"
				      "'cmd':['x','y'],'workdir':'/low'}");
	auto_json json_t *up = parse("{'env':{'B':'3','C':'4'},'cmd':['z'],"
				     "'workdir':'/up'}");
	auto_json json_t *want = parse("{'env':{'A':'1','B':'3','C':'4'},"
				       "'user':'low','cmd':['z'],"
				       "'workdir':'/up'}");
	auto_json json_t *was = json_deep_copy(low);
	auto_json json_t *none = json_object();
	auto_json json_t *got = NULL;
	auto_json json_t *same = NULL;

	is_int(config_join(low, up, &got, NULL), 0, "joined");
	ok(json_equal(got, want), "as it should be");
	ok(json_equal(low, was), "the lower is as it was");
	is_int(config_join(none, up, &same, NULL), 0, "over nothing");
	ok(json_equal(same, up), "is the upper");
}

static void check_kinds(void)
{
	enum layer_kind k;

	for (int i = LAYER_BASE; i <= LAYER_TOOLKIT; i++)
		ok(layer_kind_parse(layer_kind_name((enum layer_kind)i), &k,
				    NULL) == 0 &&
			   k == (enum layer_kind)i,
		   "kind %s", layer_kind_name((enum layer_kind)i));
	is_int(layer_kind_parse("Base", &k, NULL), -EINVAL, "another");
}

int main(void)
{
	check_round();
	check_changes();
	check_many();
	check_env();
	check_join();
	check_kinds();
	return tap_done();
}
