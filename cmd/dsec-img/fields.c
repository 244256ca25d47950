/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "img.h"

/* clang-format off */
const struct field img_common[COMMON_LEN] = {
	[COMMON_STORE] = {{"store", NULL, 0, "DIR", "the store (images.json, else $DSEC_LIB/img/store)"}, "store", FIELD_STR, 1, FIELD_STR_MAX - 1, NULL},
	[COMMON_DEADLINE] = {{"deadline", NULL, 0, "TIME", "give up after so long"}, "deadline_ms", FIELD_MS, 1, 0, NULL},
	[COMMON_EVENTS] = {{"events", NULL, 0, NULL, "progress as event records"}, NULL, FIELD_NONE, 0, 0, NULL},
	[COMMON_JSON] = {{"json", NULL, 0, NULL, "records (the default unless on a terminal)"}, NULL, FIELD_NONE, 0, 0, NULL},
	[COMMON_TABLE] = {{"table", NULL, 0, NULL, "text for people"}, NULL, FIELD_NONE, 0, 0, NULL},
	[COMMON_HELP] = {{"help", NULL, 'h', NULL, "this text; with an operation, its flags"}, NULL, FIELD_NONE, 0, 0, NULL},
	[COMMON_VERSION] = {{"version", NULL, 0, NULL, "print the version"}, NULL, FIELD_NONE, 0, 0, NULL},
	[COMMON_OP] = {.key = "op", .type = FIELD_STR, .min = 1, .max = 32},
};

/* Fields that several operations have. */
#define NAME_FIELD {.key = "name", .type = FIELD_STR, .min = 1, .max = IMG_NAME_MAX}
#define AS_FIELD {{"as", NULL, 'a', "NAME", "what to call it: PROJECT/NAME:VERSION"}, "as", FIELD_STR, 1, IMG_NAME_MAX, NULL}
#define KIND_FIELD {{"kind", NULL, 'k', "KIND", "base, workspace or toolkit"}, "kind", FIELD_STR, 1, 16, NULL}
#define AT_FIELD {{"at", NULL, 0, "DIR", "where its root is put in a sandbox (/)"}, "at", FIELD_STR, 1, FIELD_STR_MAX - 1, NULL}
#define DICT_FIELD {{"dict", NULL, 'd', "NAME", "store no chunk that this image has; repeats"}, "dict", FIELD_STRS, 0, 0, NULL}
#define ENV_FIELD {{"env", NULL, 'e', "K=V", "a variable of its configuration; repeats"}, "env", FIELD_MAP, 0, 0, NULL}
#define USER_FIELD {{"user", NULL, 'u', "USER[:GROUP]", "who its commands run as"}, "user", FIELD_STR, 1, 256, NULL}
#define WORKDIR_FIELD {{"workdir", NULL, 'w', "DIR", "where its commands start"}, "workdir", FIELD_STR, 1, FIELD_STR_MAX - 1, NULL}
#define PLATFORM_FIELD {{"platform", NULL, 0, "OS/ARCH", "which image of an index (this machine's)"}, "platform", FIELD_STR, 1, 64, NULL}
#define FORCE_FIELD(help) {{"force", NULL, 'f', NULL, help}, "force", FIELD_BOOL, 0, 0, NULL}
#define SOURCE_FIELD {.key = "source", .type = FIELD_STR, .min = 1, .max = FIELD_STR_MAX - 1}

static const struct field import_fields[] = {
	SOURCE_FIELD, AS_FIELD, KIND_FIELD, AT_FIELD, DICT_FIELD,
	ENV_FIELD, USER_FIELD, WORKDIR_FIELD, PLATFORM_FIELD,
	{{"exclude", NULL, 'x', "PATTERN", "leave out of a directory what matches; repeats"}, "exclude", FIELD_STRS, 0, 0, NULL},
	{{"oci-whiteouts", NULL, 0, NULL, "in a tar, .wh.NAME removes NAME of what is below"}, "oci_whiteouts", FIELD_BOOL, 0, 0, NULL},
};
static const struct field pull_fields[] = {
	SOURCE_FIELD, AS_FIELD, KIND_FIELD, AT_FIELD, DICT_FIELD,
	ENV_FIELD, USER_FIELD, WORKDIR_FIELD, PLATFORM_FIELD,
	{{"authfile", NULL, 0, "FILE", "credentials, for skopeo"}, "authfile", FIELD_STR, 1, FIELD_STR_MAX - 1, NULL},
	{{"insecure", NULL, 0, NULL, "a registry without TLS, or not checked"}, "insecure", FIELD_BOOL, 0, 0, NULL},
};
static const struct field name_fields[] = {NAME_FIELD};
static const struct field unmount_fields[] = {
	NAME_FIELD,
	{{"all", NULL, 0, NULL, "all that no sandbox uses"}, "all", FIELD_BOOL, 0, 0, NULL},
};
static const struct field pack_fields[] = {
	{.key = "sandbox", .type = FIELD_STR, .min = 1, .max = 64},
	AS_FIELD, KIND_FIELD, DICT_FIELD, ENV_FIELD, USER_FIELD, WORKDIR_FIELD,
	{{"residue", NULL, 0, "WHAT", "remove (the default), list (but keep) or off"}, "residue", FIELD_STR, 1, 16, NULL},
	{{"keep", NULL, 0, "RULE", "keep what this rule would remove; repeats"}, "keep", FIELD_STRS, 0, 0, NULL},
	{{"also", NULL, 0, "RULE", "remove by a rule that is off; repeats"}, "also", FIELD_STRS, 0, 0, NULL},
	{{"git-shallow", NULL, 0, NULL, "remove what in .git leads beyond HEAD"}, "git_shallow", FIELD_BOOL, 0, 0, NULL},
	{{"dry-run", NULL, 'n', NULL, "list what would be removed, pack nothing"}, "dry_run", FIELD_BOOL, 0, 0, NULL},
};
static const struct field export_fields[] = {
	NAME_FIELD,
	{.key = "target", .type = FIELD_STR, .min = 1, .max = FIELD_STR_MAX - 1},
	{{"compress", NULL, 'z', "HOW", "layers of an archive: none (the default), gzip, zstd"}, "compress", FIELD_STR, 1, 16, NULL},
};
static const struct field diff_fields[] = {
	NAME_FIELD,
	{.key = "to", .type = FIELD_STR, .min = 1, .max = IMG_NAME_MAX},
};
static const struct field lint_fields[] = {
	NAME_FIELD,
	{{"strict", NULL, 0, NULL, "exit status 1 if there is a finding"}, "strict", FIELD_BOOL, 0, 0, NULL},
};
static const struct field ls_fields[] = {
	{.key = "match", .type = FIELD_STR, .min = 1, .max = IMG_NAME_MAX},
	{{"digests", NULL, 0, NULL, "manifests that no tag names as well"}, "digests", FIELD_BOOL, 0, 0, NULL},
};
static const struct field tag_fields[] = {
	NAME_FIELD,
	{.key = "new", .type = FIELD_STR, .min = 1, .max = IMG_NAME_MAX},
};
static const struct field rm_fields[] = {
	NAME_FIELD,
	FORCE_FIELD("even if layers were packed on it"),
};
static const struct field du_fields[] = {
	{.key = "names", .type = FIELD_STRS},
};
static const struct field env_fields[] = {
	{.key = "names", .type = FIELD_STRS},
	AS_FIELD,
};
static const struct field verify_fields[] = {
	NAME_FIELD,
	{{"all", NULL, 0, NULL, "all images of the store"}, "all", FIELD_BOOL, 0, 0, NULL},
	{{"data", NULL, 0, NULL, "read every byte of their data too"}, "data", FIELD_BOOL, 0, 0, NULL},
};
static const struct field prune_fields[] = {
	{{"grace", NULL, 'g', "TIME", "unused for so long (images.json, else 1d)"}, "grace_s", FIELD_S, 0, 0, NULL},
	{{"dry-run", NULL, 'n', NULL, "say what would go, remove nothing"}, "dry_run", FIELD_BOOL, 0, 0, NULL},
};

#define FIELDS(a) .fields = (a), .nfields = array_len(a)

const struct img_op img_ops[] = {
	{"import", "SOURCE [--as NAME] [FLAGS]", "an archive, layout, tar or directory to an image",
		op_import, {"source"}, 1, MORE_NONE, FIELDS(import_fields), print_import,
		"SOURCE: docker-archive:FILE[:REF], oci-archive:FILE[:REF], oci:DIR[:REF],\n"
		"        tar:FILE (of a root; /dev/stdin), dir:DIR, inbox:NODE/NAME"},
	{"pull", "REFERENCE --as NAME [FLAGS]", "an image of a registry, through skopeo",
		op_pull, {"source"}, 1, MORE_NONE, FIELDS(pull_fields), print_import},
	{"ls", "[PROJECT | PATTERN]", "the images of the store",
		op_ls, {"match"}, 0, MORE_NONE, FIELDS(ls_fields), print_ls},
	{"inspect", "NAME...", "what an image is made of",
		op_inspect, {"name"}, 1, MORE_EACH, FIELDS(name_fields), print_inspect},
	{"tag", "NAME NEW", "one more name for an image",
		op_tag, {"name", "new"}, 2, MORE_NONE, FIELDS(tag_fields), print_tag},
	{"rm", "NAME...", "remove names that nothing uses",
		op_rm, {"name"}, 1, MORE_EACH, FIELDS(rm_fields), print_rm},
	{"du", "[NAME...]", "bytes: shared, its own, of the store",
		op_du, {"names"}, 0, MORE_LIST, FIELDS(du_fields), print_du},
	{"env", "NAME... [--as NAME]", "layers made one environment, lowest first",
		op_env, {"names"}, 1, MORE_LIST, FIELDS(env_fields), print_env},
	{"diff", "NAME TO", "what differs between two images",
		op_diff, {"name", "to"}, 2, MORE_NONE, FIELDS(diff_fields), print_diff},
	{"lint", "NAME...", "what a grader would not want inside",
		op_lint, {"name"}, 1, MORE_EACH, FIELDS(lint_fields), print_lint},
	{"pack", "SANDBOX... --as NAME [FLAGS]", "a sandbox's changes to a layer",
		op_pack, {"sandbox"}, 1, MORE_EACH, FIELDS(pack_fields), print_pack},
	{"export", "NAME TARGET [FLAGS]", "an image to an archive that others load",
		op_export, {"name", "target"}, 2, MORE_NONE, FIELDS(export_fields), print_export,
		"TARGET: oci-archive:FILE, tar:FILE"},
	{"verify", "NAME... | --all [--data]", "is it what its digests say",
		op_verify, {"name"}, 0, MORE_EACH, FIELDS(verify_fields), print_verify},
	{"prune", "[--grace TIME] [--dry-run]", "remove what nothing leads to any more",
		op_prune, {NULL}, 0, MORE_NONE, FIELDS(prune_fields), print_prune},
	{"mount", "NAME...", "mount a layer on this node",
		op_mount, {"name"}, 1, MORE_EACH, FIELDS(name_fields), print_mount},
	{"unmount", "NAME... | --all", "unmount layers that no sandbox uses",
		op_unmount, {"name"}, 0, MORE_EACH, FIELDS(unmount_fields), print_mount},
};
/* clang-format on */

const size_t img_ops_len = array_len(img_ops);

const struct img_op *img_op_find(const char *name)
{
	for (size_t i = 0; i < img_ops_len; i++)
		if (!strcmp(img_ops[i].name, name))
			return &img_ops[i];
	return NULL;
}

int img_table(const struct img_op *op, struct field **ret, size_t *ret_n,
	      struct err *e)
{
	size_t own = op ? op->nfields : 0;
	struct field *f = calloc(COMMON_LEN + own, sizeof(*f));

	if (!f)
		return err_sys(e, ENOMEM, "table of fields");
	memcpy(f, img_common, sizeof(img_common));
	if (own)
		memcpy(f + COMMON_LEN, op->fields, own * sizeof(*f));
	*ret = f;
	*ret_n = COMMON_LEN + own;
	return 0;
}
