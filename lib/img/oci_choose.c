/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/cleanup.h"
#include "img/import_priv.h"
#include "img/oci.h"

#define INDEX_DEPTH   4	   /* of indexes in indexes */
#define INDEXES_MAX   32   /* read for one image */
#define MANIFESTS_MAX 4096 /* that they name */
#define SHOWN_MAX     8	   /* told when none fits */

/* What is looked for, and what was found. */
struct choice {
	struct oci_files *f;
	const char *ref; /* NULL: any */
	const char *os, *arch, *variant;
	bool asked; /* for this platform, by the caller */
	unsigned indexes, manifests, found;
	struct digest digest;
	int64_t size;
	struct buf seen; /* for the message */
	unsigned nseen;
};

static int bad(struct err *e, const char *what)
{
	return err_set(e, -EBADMSG, "bad_archive", "%s", what);
}

bool oci_digest(const json_t *descriptor, struct digest *ret)
{
	const char *s = json_str(descriptor, "digest");

	return !strncmp(s, "sha256:", 7) && digest_parse(s, ret) == 0;
}

/* --- names -------------------------------------------------------------------
 */

/* Registry, path and tag, as docker completes them. */
int oci_ref_normal(const char *ref, char *buf, size_t size)
{
	size_t n = strlen(ref), first = strcspn(ref, "/");
	bool registry, tagged;
	const char *last = strrchr(ref, '/');
	int len;

	if (n == 0 || n > 255 ||
	    strspn(ref, "abcdefghijklmnopqrstuvwxyz"
			"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
			"0123456789._-/:@") != n)
		return -EINVAL;
	if (*ref == '-' || *ref == '/' || ref[n - 1] == '/' ||
	    strstr(ref, "//"))
		return -EINVAL;
	registry = ref[first] == '/' &&
		   (memchr(ref, '.', first) || memchr(ref, ':', first) ||
		    (first == 9 && !memcmp(ref, "localhost", 9)));
	last = last ? last + 1 : ref;
	tagged = strpbrk(last, ":@") != NULL;
	len = snprintf(buf, size, "%s%s%s%s", registry ? "" : "docker.io/",
		       !registry && ref[first] != '/' ? "library/" : "", ref,
		       tagged ? "" : ":latest");
	return len < 0 || (size_t)len >= size ? -EINVAL : 0;
}

/* Do both mean one image?  A layout may name it by a tag alone. */
static bool same_ref(const char *have, const char *want)
{
	char a[320], b[320];

	if (!strcmp(have, want))
		return true;
	return oci_ref_normal(have, a, sizeof(a)) == 0 &&
	       oci_ref_normal(want, b, sizeof(b)) == 0 && !strcmp(a, b);
}

static int show(struct choice *k, const char *what)
{
	char text[IMPORT_NAME_SIZE];

	if (!*what || k->nseen > SHOWN_MAX)
		return 0;
	if (k->nseen++ == SHOWN_MAX)
		return buf_addf(&k->seen, ", ..");
	return buf_addf(&k->seen, "%s%.64s", k->seen.len ? ", " : "",
			import_name(what, text));
}

static int not_found(const struct choice *k, const char *what, struct err *e)
{
	return err_set(e, -ENOENT, "image_unknown", "%s%s%s%s", what,
		       k->seen.len ? " (there is: " : "",
		       k->seen.len ? k->seen.data : "", k->seen.len ? ")" : "");
}

/* --- platforms ---------------------------------------------------------------
 */

static const char *machine_arch(void)
{
	static const char *const names[][2] = {
		{"x86_64", "amd64"},	{"aarch64", "arm64"},
		{"i686", "386"},	{"armv7l", "arm"},
		{"ppc64le", "ppc64le"}, {"riscv64", "riscv64"},
		{"s390x", "s390x"},	{"loongarch64", "loong64"},
	};
	struct utsname u;

	if (uname(&u) < 0)
		return "amd64";
	for (size_t i = 0; i < array_len(names); i++)
		if (!strcmp(u.machine, names[i][0]))
			return names[i][1];
	return "amd64";
}

/* "linux/arm/v7" into the fields of ${k}, which then point into ${copy}. */
static int parse_platform(struct choice *k, const char *text, char *copy,
			  size_t size, struct err *e)
{
	char *slash, *second;

	k->os = "linux";
	k->arch = machine_arch();
	k->variant = "";
	if (!text)
		return 0;
	k->asked = true;
	if ((size_t)snprintf(copy, size, "%s", text) >= size)
		return err_set(e, -EINVAL, "bad_value", "platform");
	slash = strchr(copy, '/');
	second = slash ? strchr(slash + 1, '/') : NULL;
	if (!slash || slash == copy || !slash[1])
		return err_set(e, -EINVAL, "bad_value",
			       "a platform is OS/ARCHITECTURE[/VARIANT], as "
			       "linux/amd64");
	*slash = '\0';
	k->os = copy;
	k->arch = slash + 1;
	if (second) {
		*second = '\0';
		k->variant = second + 1;
	}
	return 0;
}

bool oci_platform_is(const char *platform, const char *os, const char *arch)
{
	struct choice k = {0};
	char copy[128];

	return parse_platform(&k, platform, copy, sizeof(copy), NULL) == 0 &&
	       (!*os || !strcmp(os, k.os)) && (!*arch || !strcmp(arch, k.arch));
}

static bool is_attestation(const json_t *d)
{
	const json_t *p = json_object_get(d, "platform");
	const json_t *notes = json_object_get(d, "annotations");

	return !strcmp(json_str(notes, "vnd.docker.reference.type"),
		       "attestation-manifest") ||
	       (p && !strcmp(json_str(p, "os"), "unknown") &&
		!strcmp(json_str(p, "architecture"), "unknown"));
}

/* One without platform may be anything: its configuration will tell. */
static bool fits(const struct choice *k, const json_t *platform)
{
	const char *variant = json_str(platform, "variant");

	if (!json_is_object(platform))
		return true;
	return !strcmp(json_str(platform, "os"), k->os) &&
	       !strcmp(json_str(platform, "architecture"), k->arch) &&
	       (!*k->variant || !strcmp(variant, k->variant));
}

/* --- indexes -----------------------------------------------------------------
 */

static bool is_index(const char *type)
{
	return !strcmp(type, "application/vnd.oci.image.index.v1+json") ||
	       !strcmp(type, "application/vnd.docker.distribution.manifest."
			     "list.v2+json");
}

static bool is_manifest(const char *type)
{
	return !strcmp(type, "application/vnd.oci.image.manifest.v1+json") ||
	       !strcmp(type,
		       "application/vnd.docker.distribution.manifest.v2+json");
}

static int take_manifest(struct choice *k, const json_t *d, struct err *e)
{
	const json_t *p = json_object_get(d, "platform");
	struct digest digest;
	char text[96];

	if (!oci_digest(d, &digest))
		return bad(e, "a manifest without a SHA-256 digest");
	if (p) {
		snprintf(text, sizeof(text), "%.30s/%.30s%s%.30s",
			 json_str(p, "os"), json_str(p, "architecture"),
			 *json_str(p, "variant") ? "/" : "",
			 json_str(p, "variant"));
		if (show(k, text) < 0)
			return err_sys(e, ENOMEM, "image");
	}
	if (!fits(k, p))
		return 0;
	/* Twice under two names is once; of two variants the first counts. */
	if (k->found && !p && !digest_eq(&digest, &k->digest))
		return not_found(k, "several images: say which", e);
	if (k->found++ == 0) {
		k->digest = digest;
		k->size = json_int(d, "size", -1);
	}
	return 0;
}

struct waiting {
	json_t *index; /* owned */
	size_t next;
};

static const char *ref_of(const json_t *d)
{
	return json_str(json_object_get(d, "annotations"),
			"org.opencontainers.image.ref.name");
}

/* Does an entry of index.json itself have the name? */
static int is_wanted(struct choice *k, const json_t *d, struct err *e)
{
	const json_t *notes = json_object_get(d, "annotations");
	const char *ref = ref_of(d);
	const char *full = json_str(notes, "io.containerd.image.name");

	if (show(k, *full ? full : ref) < 0)
		return err_sys(e, ENOMEM, "image");
	return !k->ref || (*ref && same_ref(ref, k->ref)) ||
	       (*full && same_ref(full, k->ref));
}

static int open_index(struct choice *k, const json_t *d, json_t **ret,
		      struct err *e)
{
	char name[OCI_BLOB_NAME];
	struct digest digest;

	if (k->indexes++ == INDEXES_MAX)
		return bad(e, "too many indexes");
	if (!oci_digest(d, &digest))
		return bad(e, "an index without a SHA-256 digest");
	return oci_files_json(k->f, oci_blob_name(&digest, name), &digest, ret,
			      e);
}

/* One descriptor; 1: an index, opened into *${ret}. */
static int take_descriptor(struct choice *k, const json_t *d, bool top,
			   json_t **ret, struct err *e)
{
	const char *type = json_str(d, "mediaType");
	int r = 1;

	if (!json_is_object(d))
		return bad(e, "an index whose entries are no objects");
	if (k->manifests++ == MANIFESTS_MAX)
		return bad(e, "too many manifests");
	if (is_attestation(d))
		return 0;
	if (top)
		r = is_wanted(k, d, e);
	if (r <= 0)
		return r;
	if (is_index(type)) {
		r = open_index(k, d, ret, e);
		return r < 0 ? r : 1;
	}
	/* An entry of another kind is no image: signatures, charts. */
	return is_manifest(type) || !*type ? take_manifest(k, d, e) : 0;
}

/* Indexes in indexes, by a stack of our own. */
static int walk_indexes(struct choice *k, json_t *top, struct err *e)
{
	struct waiting stack[INDEX_DEPTH] = {{json_incref(top), 0}};
	int n = 1, r = 0;

	while (n > 0 && r >= 0) {
		struct waiting *w = &stack[n - 1];
		const json_t *list = json_object_get(w->index, "manifests");
		json_t *inner = NULL;

		if (w->next >= json_array_size(list)) {
			json_decref(w->index);
			n--;
			continue;
		}
		r = take_descriptor(k, json_array_get(list, w->next++), n == 1,
				    &inner, e);
		if (r == 1 && inner && n == INDEX_DEPTH) {
			json_decref(inner);
			r = bad(e, "an index in an index in an index ..");
		} else if (r == 1 && inner) {
			stack[n++] = (struct waiting){inner, 0};
		}
	}
	while (n > 0)
		json_decref(stack[--n].index);
	return r < 0 ? r : 0;
}

static int choose_layout(struct choice *k, json_t **ret, struct err *e)
{
	auto_json json_t *index = NULL;
	char name[OCI_BLOB_NAME];
	int r;

	r = oci_files_json(k->f, "index.json", NULL, &index, e);
	if (r < 0)
		return r;
	if (!json_is_array(json_object_get(index, "manifests")))
		return bad(e, "index.json has no list of manifests");
	r = walk_indexes(k, index, e);
	if (r < 0)
		return r;
	if (!k->found)
		return not_found(k,
				 k->ref ? "no such image, or not for this "
					  "platform"
					: "no image for this platform",
				 e);
	return oci_files_json(k->f, oci_blob_name(&k->digest, name), &k->digest,
			      ret, e);
}

/* --- manifest.json
 * ------------------------------------------------------------ */

/* 1: it is called so. */
static int has_tag(struct choice *k, const json_t *image, struct err *e)
{
	const json_t *tags = json_object_get(image, "RepoTags"), *tag;
	bool found = !k->ref;
	size_t i;

	json_array_foreach(tags, i, tag) {
		const char *s = json_string_value(tag);

		if (!s)
			continue;
		if (show(k, s) < 0)
			return err_sys(e, ENOMEM, "image");
		found = found || same_ref(s, k->ref);
	}
	return found;
}

static int choose_docker(struct choice *k, json_t **ret, struct err *e)
{
	auto_json json_t *list = NULL;
	json_t *image, *one = NULL;
	size_t i;
	int r;

	r = oci_files_json(k->f, "manifest.json", NULL, &list, e);
	if (r < 0)
		return r;
	if (!json_is_array(list))
		return bad(e, "manifest.json is no list");
	json_array_foreach(list, i, image) {
		if (!json_is_object(image))
			return bad(e, "manifest.json is no list of objects");
		r = has_tag(k, image, e);
		if (r < 0)
			return r;
		if (r == 0)
			continue;
		if (one)
			return not_found(k, "several images: say which", e);
		one = image;
	}
	if (!one)
		return not_found(k, "no such image in the archive", e);
	*ret = json_incref(one);
	return 0;
}

int oci_choose(struct oci_files *f, const char *ref, const char *platform,
	       json_t **ret_manifest, struct err *e)
{
	struct choice k = {.f = f, .ref = ref};
	char copy[128];
	int r;

	r = parse_platform(&k, platform, copy, sizeof(copy), e);
	if (r == 0)
		r = oci_files_form(f) == OCI_DOCKER
			    ? choose_docker(&k, ret_manifest, e)
			    : choose_layout(&k, ret_manifest, e);
	buf_done(&k.seen);
	return r;
}
