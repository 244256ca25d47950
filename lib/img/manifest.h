/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_MANIFEST_H
#define IMG_MANIFEST_H

#include "img/fstree.h"
#include "wire/json.h"

/*
 * What a layer is, in JSON (sorted keys, compact): its bytes' SHA-256 is the
 * layer's digest, which is what tags, environments, claims and leases name.
 *
 *   {"v":1,"kind":"layer","layer":"base"|"workspace"|"toolkit",
 *    "meta":{"digest":HEX,"size":BYTES},
 *    "devices":[{"root":HEX,"blocks":N}..]   in the order of the device table
 *    "at":"/work"                            where its root was put, or absent
 *    "entries":N,"bytes":N,"new_bytes":N,    inodes; file bytes; stored for it
 *    "config":{"env":{..},"user":"..","workdir":"..","entrypoint":[..],
 *              "cmd":[..],"arch":"amd64","labels":{..}}
 *    "source":{"type":"docker-archive"|"oci"|"tar"|"dir"|"sandbox"|..,
 *              "digest":"..","name":".."},
 *    "parents":[HEX..]}                      layers it was packed on
 *
 * and an environment, layers by name made one:
 *
 *   {"v":1,"kind":"env","layers":[HEX.. lowest first],"config":{..}}
 *
 * Readers check every field: a store may be written by others.
 */
enum layer_kind { LAYER_BASE, LAYER_WORKSPACE, LAYER_TOOLKIT };
const char *layer_kind_name(enum layer_kind kind);
int layer_kind_parse(const char *s, enum layer_kind *ret, struct err *e);

#define MANIFEST_MAX	  (1024 * 1024) /* bytes of a file */
#define ENV_LAYERS_MAX	  16
#define LAYER_PARENTS_MAX ENV_LAYERS_MAX

struct layer {
	enum layer_kind kind;
	struct digest meta;
	uint64_t meta_bytes;
	struct fsdevice *devices; /* owned */
	size_t ndevices;
	char *at; /* owned, NULL: its root is the root */
	uint64_t entries, bytes, new_bytes;
	json_t *config, *source; /* owned; objects, perhaps empty */
	struct digest parents[LAYER_PARENTS_MAX];
	size_t nparents;
};

/* layer_done(l): as it was when all zero. */
void layer_done(struct layer *l);
#define auto_layer __attribute__((cleanup(layer_done)))

/* layer_parse(obj, ret, e): -EBADMSG, code "image_damaged".  layer_json(l, ret,
 * e): -EINVAL, code "bad_value", for what layer_parse() would refuse. */
int layer_parse(const json_t *obj, struct layer *ret, struct err *e);
int layer_json(const struct layer *l, json_t **ret, struct err *e);

struct env {
	struct digest layers[ENV_LAYERS_MAX];
	size_t nlayers;
	json_t *config; /* owned */
};
void env_done(struct env *v);
#define auto_env __attribute__((cleanup(env_done)))
int env_parse(const json_t *obj, struct env *ret, struct err *e);
int env_json(const struct env *v, json_t **ret, struct err *e);

/*
 * config_join(lower, upper, ret, e): the configuration of ${upper} over
 * ${lower}: variables by name, the other keys as a whole where ${upper} has
 * them.
 */
int config_join(const json_t *lower, const json_t *upper, json_t **ret,
		struct err *e);

/* config_check(config, e): of the form above; -EBADMSG, "image_damaged". */
int config_check(const json_t *config, struct err *e);

/* manifest_is_env(obj): else it is a layer, or nothing we know. */
bool manifest_is_env(const json_t *obj);

/* manifest_text(obj, ret, ret_len, e): the bytes, the caller's to free. */
int manifest_text(const json_t *obj, char **ret, size_t *ret_len,
		  struct err *e);

#endif
