/* SPDX-License-Identifier: Apache-2.0 */
/* An archive with images, as docker or OCI write it, up to the layers' bytes.
 */
#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "fuzz.h"
#include "img/oci.h"
#include "mend.h"

static void read_layer(struct oci_files *f, const struct oci_layer *l)
{
	auto_source struct source *s = NULL;
	struct oci_part part = {.fd = -1};
	struct err e = {0};

	if (oci_layer_open(f, l, &part, &s, &e) < 0) {
		assert(e.code);
		return;
	}
	if (oci_layer_end(l, s, &e) < 0)
		assert(e.code);
	fd_close(part.fd);
}

static void read_image(struct oci_files *f, const char *ref,
		       const char *platform)
{
	auto_oci_image struct oci_image img = {0};
	auto_json json_t *config = NULL;
	struct err e = {0};

	if (oci_image_open(f, ref, platform, &img, &e) < 0) {
		assert(e.code && e.msg[0]);
		return;
	}
	assert(img.nlayers <= OCI_LAYERS_MAX);
	if (oci_config(&img, &config, &e) < 0)
		assert(e.code);
	else
		assert(json_is_object(config));
	for (size_t i = 0; i < img.nlayers; i++)
		read_layer(f, &img.layers[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free uint8_t *copy = malloc(size + 1);
	auto_close int fd = memfd_create("input", MFD_CLOEXEC);
	auto_close int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct oci_files *f = NULL;
	struct err e = {0};
	char text[400];

	if (size == 0 || !copy)
		return 0;
	memcpy(copy, data, size);
	mend_checksums(copy, size);
	assert(fd >= 0 && write(fd, copy, size) == (ssize_t)size);
	oci_guess(fd);
	/* A spool file of the same name may be another run's. */
	if (oci_files_archive(fd, tmp, NULL, NULL, &f, &e) < 0) {
		assert(e.code);
		return 0;
	}
	read_image(f, NULL, "linux/amd64");
	read_image(f, "one:1", NULL);
	oci_files_free(f);
	copy[size] = '\0';
	oci_ref_normal((char *)copy, text, sizeof(text));
	return 0;
}
