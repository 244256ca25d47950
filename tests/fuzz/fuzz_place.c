/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of nodes and clients through the placer: answers are records, and what
 * it knows of its nodes stays sound. */
#include <assert.h>
#include <string.h>

#include "../../cmd/dsec-place/filter.c"
#include "../../cmd/dsec-place/report.c"
#include "box/spec.h"
#include "fuzz.h"

/* Those that the placer reads. */
static const struct field more[] = {
	{{.name = NULL}, "node_labels", FIELD_MAP, 0, 0, NULL},
	{{.name = NULL}, "node_capabilities", FIELD_STRS, 0, 0, NULL},
	{{.name = NULL}, "avoid", FIELD_STRS, 0, 0, NULL},
	{{.name = NULL}, "op", FIELD_STR, 1, 16, NULL},
	{{.name = NULL}, "at_ms", FIELD_INT, 0, 1LL << 60, NULL},
	{{.name = NULL}, "k", FIELD_INT, 1, PLACE_K_MAX, NULL},
	{{.name = NULL}, "explain", FIELD_BOOL, 0, 0, NULL},
	{{.name = NULL}, "placement", FIELD_INT, 0, INT64_MAX, NULL},
	{{.name = NULL}, "end", FIELD_STR, 1, 16, NULL},
	{{.name = NULL}, "node", FIELD_STR, 1, PLACE_NAME_MAX, NULL},
};

static void table_of(struct table *t)
{
	t->n = t->nfields = spec_fields_len + array_len(more);
	t->rows = calloc(t->n, sizeof(*t->rows));
	assert(t->rows);
	memcpy(t->rows, spec_fields, spec_fields_len * sizeof(*t->rows));
	memcpy(t->rows + spec_fields_len, more, sizeof(more));
}

/* Every answer is a line of JSON. */
static void check_answers(const struct buf *out)
{
	const char *at = out->data, *nl;

	for (; at && *at; at = nl + 1) {
		auto_json json_t *rec = NULL;

		nl = strchr(at, '\n');
		assert(nl &&
		       json_parse(at, (size_t)(nl - at), &rec, NULL) == 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct table table;
	struct filter f = {.table = &table};
	struct place_view v;
	struct place_conf c;
	const uint8_t *nl;
	uint64_t line = 0;

	if (!table.rows)
		table_of(&table);
	place_conf_default(&c);
	c.nodes_max = 4;
	c.overlay_max = 8;
	if (place_new(&c, &f.place, NULL) < 0)
		return 0;
	while (size) {
		nl = memchr(data, '\n', size);
		size_t len = nl ? (size_t)(nl - data) : size;

		filter_line(&f, (const char *)data, len, ++line, NULL);
		data += len + (nl != NULL);
		size -= len + (nl != NULL);
	}
	for (unsigned i = 0; i < place_count(f.place); i++) {
		place_look(f.place, place_nth(f.place, i), 0, &v);
		assert(v.placements <= 8);
	}
	check_answers(&f.out);
	buf_done(&f.out);
	place_free(f.place);
	return 0;
}
