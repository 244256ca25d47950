/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of an import: what a stranger's archive takes of memory. */
#include <sys/mman.h>

#include "archive.h"
#include "img/import.h"
#include "img/oci.h"

/* So much of the limits is used already when ${in} comes. */
static int import(struct in *in, uint64_t entries, uint64_t text,
		  uint64_t *ret_made)
{
	auto_fstree struct fstree *t = fstree_new();
	struct import x = {.tree = t,
			   .flags = IMPORT_OCI,
			   .entries = entries,
			   .text = text};
	int r;

	if (!t)
		abort();
	in->pos = 0;
	memset(&last, 0, sizeof(last));
	r = import_tar(&x, from_buf, NULL, in, &last);
	if (ret_made)
		*ret_made = fstree_made(t);
	return r;
}

static void check_entries(void)
{
	struct in in = {0};

	entry(&in.b, '0', "d/.wh.a", "", NULL);
	entry(&in.b, '5', "d", "", NULL);
	end(&in.b);
	is_int(import(&in, IMPORT_NODES_MAX - 2, 0, NULL), 0,
	       "as many entries as may be");
	is_int(import(&in, IMPORT_NODES_MAX - 1, 0, NULL), -EFBIG,
	       "one more, though whiteouts are no nodes");
	is_str(last.code, "too_large", "and says so");
	buf_done(&in.b);
}

/* Of names that are replaced all memory stays. */
static void check_made(void)
{
	struct in in = {0};
	uint64_t made = 0;

	for (int i = 0; i < 10; i++) {
		entry(&in.b, '5', "a", "", NULL);
		entry(&in.b, '0', "a/a/a/a/a", "", NULL);
		entry(&in.b, '0', "a", "", NULL);
	}
	end(&in.b);
	is_int(import(&in, 0, 0, &made), 0, "names that are replaced");
	is_int((long long)made, 1 + 10 * 6, "are counted each time");
	buf_done(&in.b);
}

static void check_text(const char *what, char type, const char *name,
		       const char *link, uint64_t len)
{
	struct in in = {0};

	entry(&in.b, '0', "f", "", NULL);
	entry(&in.b, type, name, link, NULL);
	end(&in.b);
	printf("# %s\n", what);
	is_int(import(&in, 0, IMPORT_TEXT_MAX - len, NULL), 0, "what may be");
	is_int(import(&in, 0, IMPORT_TEXT_MAX - len + 1, NULL), -EFBIG,
	       "a byte more");
	buf_done(&in.b);
}

static void check_members(bool in_link, size_t len)
{
	struct buf b = {0}, text = {0};
	struct oci_files *f = NULL;
	auto_free char *name = malloc(len + 1);
	const char *key = in_link ? "linkpath" : "path";
	int fd = memfd_create("archive", MFD_CLOEXEC);
	int r;

	if (!name || fd < 0)
		abort();
	memset(name, 'n', len);
	name[len] = '\0';
	/* a length of four digits, which counts itself */
	if (buf_addf(&text, "%zu %s=%s\n", 4 + 3 + strlen(key) + len, key,
		     name) < 0)
		abort();
	pax(&b, text.data, text.len);
	entry(&b, '2', "l", "x", NULL);
	end(&b);
	if (fd_write_all(fd, b.data, b.len, NULL) < 0 ||
	    lseek(fd, 0, SEEK_SET) != 0)
		abort();
	r = oci_files_archive(fd, -1, NULL, NULL, &f, &last);
	printf("# %s of %zu bytes\n", key, len);
	is_int(r, len < PATH_MAX ? 0 : -EBADMSG, "a name of an archive");
	if (r == 0)
		oci_files_free(f);
	close(fd);
	buf_done(&b);
	buf_done(&text);
}

int main(void)
{
	check_entries();
	check_made();
	check_text("a whiteout", '0', "dir/.wh.gone", "", 12);
	check_text("a hard link", '1', "dir/name", "f", 4);
	check_text("a symbolic link", '2', "dir/name", "target", 6);
	check_members(true, PATH_MAX - 1);
	check_members(true, PATH_MAX);
	check_members(false, PATH_MAX - 1);
	check_members(false, PATH_MAX);
	return tap_done();
}
