/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "box/claim.h"
#include "box/ledger_priv.h"
#include "wire/field.h"

/* Above what container managers and user databases hand out by themselves
 * (524288 to 1879048191), below the ids that some tools take for negative. */
#define UID_FIRST  1879048192u
#define UID_RANGES 4094u
#define UID_END	   4294901760u /* 0xffff0000: the last range holds (uid_t)-1 */

/* Processes that an idle sandbox needs: supervisor, pid 1 and two to spare. */
#define TASKS_PER_SANDBOX 4

#define MB (1024 * 1024)

/* node.json */
static const struct field fields[] = {
	{.key = "memory_mb", .type = FIELD_MB, .min = 1},
	{.key = "cpu_cores", .type = FIELD_NUM, .min = 1, .max = 4096000},
	{.key = "disk_mb", .type = FIELD_MB},
	{.key = "max_sandboxes", .type = FIELD_INT, .min = 1, .max = 65535},
	{.key = "memory_overcommit",
	 .type = FIELD_NUM,
	 .min = 1,
	 .max = 1000000000},
	{.key = "cpu_overcommit",
	 .type = FIELD_NUM,
	 .min = 1,
	 .max = 1000000000},
	{.key = "pids_overcommit",
	 .type = FIELD_NUM,
	 .min = 1,
	 .max = 1000000000},
	{.key = "memory_reserve_mb", .type = FIELD_MB},
	{.key = "disk_reserve_mb", .type = FIELD_MB},
	{.key = "pressure_max", .type = FIELD_NUM, .max = 1000},
	{.key = "uid_first", .type = FIELD_INT, .min = 65536, .max = UID_END},
	{.key = "uid_ranges", .type = FIELD_INT, .min = 1, .max = 65534},
	/* no matter of admission: identity_merge() */
	{.key = "single_tenant", .type = FIELD_BOOL},
	{.key = "isolation", .type = FIELD_STR, .min = 1, .max = 16},
	{.key = "reserved_for", .type = FIELD_STRS},
	/* no matter of admission: the node's report */
	{.key = "labels", .type = FIELD_MAP},
	{.key = "capabilities", .type = FIELD_STRS},
};

uint64_t ledger_config(const struct tree *t)
{
	char path[PATH_MAX];
	struct stat st;

	if (tree_path(path, NULL, "%s/node.json", t->config) < 0 ||
	    stat(path, &st) < 0)
		return 0;
	return (uint64_t)st.st_mtim.tv_sec * 1000000000u +
	       (uint64_t)st.st_mtim.tv_nsec + (uint64_t)st.st_size * 31 +
	       st.st_ino;
}

static uint64_t read_number(const char *path, uint64_t dflt)
{
	auto_free char *text = NULL;

	if (fd_read_file(AT_FDCWD, path, 64, &text, NULL, NULL) < 0)
		return dflt;
	return strtoull(text, NULL, 10);
}

static int measure_machine(const struct tree *t, struct ledger_data *d,
			   struct err *e)
{
	uint64_t pid_max = read_number("/proc/sys/kernel/pid_max", 32768);
	uint64_t threads = read_number("/proc/sys/kernel/threads-max", pid_max);
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t memory, disk;
	struct statvfs vfs;
	struct sysinfo si;

	if (sysinfo(&si) < 0 || cpus < 1)
		return err_sys(e, EIO, "measure the machine");
	if (statvfs(t->lib, &vfs) < 0)
		return err_sys(e, errno, "measure the disk of '%s'", t->lib);
	memory = (uint64_t)si.totalram * si.mem_unit / MB;
	disk = (uint64_t)vfs.f_blocks * vfs.f_frsize / MB;
	admit_rules_default(&d->rules, memory);
	d->tasks_max = pid_max < threads ? pid_max : threads;
	d->slot_first = UID_FIRST / CLAIM_UID_RANGE;
	d->slots = UID_RANGES;
	d->capacity = (struct admit_amounts){
		.memory_mb = memory > d->rules.memory_reserve_mb
				     ? memory - d->rules.memory_reserve_mb
				     : 0,
		.cpu_milli = (uint64_t)cpus * 1000,
		.disk_mb = disk > d->rules.disk_reserve_mb
				   ? disk - d->rules.disk_reserve_mb
				   : 0,
		.pids = d->tasks_max,
		.sandboxes = d->tasks_max / TASKS_PER_SANDBOX,
	};
	return 0;
}

static void set_int(const json_t *conf, const char *key, uint64_t *value)
{
	*value = (uint64_t)json_int(conf, key, (int64_t)*value);
}

static void set_milli(const json_t *conf, const char *key, uint64_t *value)
{
	const json_t *v = json_object_get(conf, key);

	if (v)
		*value = (uint64_t)(json_number_value(v) * 1000 + 0.5);
}

static int set_tenants(const json_t *conf, struct admit_tenants *t,
		       struct err *e)
{
	const json_t *list = json_object_get(conf, "reserved_for"), *v;
	const char *isolation = json_str(conf, "isolation");
	size_t i;

	t->isolated = !strcmp(isolation, "user");
	if (*isolation && !t->isolated && strcmp(isolation, "none"))
		return err_set(e, -EINVAL, "configuration",
			       "isolation '%s': none or user", isolation);
	if (json_array_size(list) > ADMIT_RESERVED_MAX)
		return err_set(e, -EINVAL, "configuration",
			       "reserved_for: more than %d users",
			       ADMIT_RESERVED_MAX);
	t->nreserved = json_array_size(list);
	json_array_foreach(list, i, v)
		if (snprintf(t->reserved[i], ADMIT_USER_SIZE, "%s",
			     json_string_value(v)) >= ADMIT_USER_SIZE)
			return err_set(e, -EINVAL, "configuration",
				       "reserved_for: '%.32s..' is no user's "
				       "name",
				       json_string_value(v));
	return 0;
}

static int configure(const json_t *conf, struct ledger_data *d, struct err *e)
{
	int64_t first = json_int(conf, "uid_first", UID_FIRST);
	int64_t ranges = json_int(conf, "uid_ranges", UID_RANGES);

	if (first % CLAIM_UID_RANGE ||
	    first + ranges * CLAIM_UID_RANGE > UID_END)
		return err_set(e, -EINVAL, "configuration",
			       "uid_first %" PRId64 " with %" PRId64
			       " uid_ranges: must be a multiple of %d, and all "
			       "below %u",
			       first, ranges, CLAIM_UID_RANGE, UID_END);
	d->slot_first = (uint32_t)(first / CLAIM_UID_RANGE);
	d->slots = (uint32_t)ranges;
	set_int(conf, "memory_mb", &d->capacity.memory_mb);
	set_milli(conf, "cpu_cores", &d->capacity.cpu_milli);
	set_int(conf, "disk_mb", &d->capacity.disk_mb);
	set_int(conf, "max_sandboxes", &d->capacity.sandboxes);
	set_milli(conf, "memory_overcommit", &d->rules.memory_overcommit);
	set_milli(conf, "cpu_overcommit", &d->rules.cpu_overcommit);
	set_milli(conf, "pids_overcommit", &d->rules.pids_overcommit);
	set_int(conf, "memory_reserve_mb", &d->rules.memory_reserve_mb);
	set_int(conf, "disk_reserve_mb", &d->rules.disk_reserve_mb);
	set_milli(conf, "pressure_max", &d->rules.pressure_max_milli);
	return set_tenants(conf, &d->tenants, e);
}

int ledger_measure(const struct tree *t, struct ledger_data *d, struct err *e)
{
	auto_json json_t *conf = NULL;
	char path[PATH_MAX];
	int r;

	r = measure_machine(t, d, e);
	if (r < 0)
		return r;
	r = tree_path(path, e, "%s/node.json", t->config);
	if (r < 0)
		return r;
	r = json_read_file(AT_FDCWD, path, &conf, e);
	if (r == 0)
		r = field_check(fields, array_len(fields), conf, e);
	if (r == 0)
		r = configure(conf, d, e);
	if (r < 0 && r != -ENOENT) {
		if (e)
			e->code = "configuration";
		return err_wrap(e, r, "'%s'", path);
	}
	if (d->capacity.sandboxes > d->slots)
		d->capacity.sandboxes = d->slots;
	return 0;
}

static uint64_t meminfo_available_mb(uint64_t dflt)
{
	auto_free char *text = NULL;
	const char *p;

	if (fd_read_file(AT_FDCWD, "/proc/meminfo", 65536, &text, NULL, NULL) <
	    0)
		return dflt;
	p = strstr(text, "\nMemAvailable:");
	return p ? strtoull(p + 14, NULL, 10) / 1024 : dflt;
}

/* "full avg10=1.53 avg60=..": how much of the last 10 s nobody could run. */
static uint64_t memory_full_milli(void)
{
	auto_free char *text = NULL;
	const char *p;

	if (fd_read_file(AT_FDCWD, "/proc/pressure/memory", 4096, &text, NULL,
			 NULL) < 0)
		return 0;
	p = strstr(text, "full avg10=");
	return p ? (uint64_t)(strtod(p + 11, NULL) * 10) : 0;
}

/* "0.20 0.18 0.12 1/80 11206": of that, the 80. */
static uint64_t count_tasks(uint64_t dflt)
{
	auto_free char *text = NULL;
	const char *p;

	if (fd_read_file(AT_FDCWD, "/proc/loadavg", 128, &text, NULL, NULL) < 0)
		return dflt;
	p = strchr(text, '/');
	return p ? strtoull(p + 1, NULL, 10) : dflt;
}

int ledger_now(const struct ledger *l, const struct admit_amounts *claim,
	       struct admit_now *now, struct err *e)
{
	const struct admit_rules *rules = &l->d.rules;
	char path[PATH_MAX];
	struct statvfs vfs;
	struct sysinfo si;
	int r;

	r = tree_path(path, e, "%s/draining", l->tree->run);
	if (r < 0)
		return r;
	now->draining = access(path, F_OK) == 0;
	if (sysinfo(&si) < 0)
		return err_sys(e, errno, "measure the machine");
	/* Free memory is less than what is available, and one call tells it.
	 * Only where it might not do is the rest worth reading. */
	now->memory_available_mb = ((uint64_t)si.freeram + si.bufferram) *
				   si.mem_unit / MB;
	now->memory_full_milli = 0;
	now->swap_mb = (uint64_t)si.totalswap * si.mem_unit / MB;
	now->swap_free_mb = (uint64_t)si.freeswap * si.mem_unit / MB;
	if (now->memory_available_mb <
	    claim->memory_mb + 2 * rules->memory_reserve_mb) {
		now->memory_available_mb = meminfo_available_mb(
			now->memory_available_mb);
		now->memory_full_milli = memory_full_milli();
	}
	now->tasks_max = l->d.tasks_max;
	now->tasks = si.procs;
	if (now->tasks_max > UINT16_MAX) /* which is all that procs can tell */
		now->tasks = count_tasks(si.procs);
	now->disk = l->tree->lib;
	now->disk_free_mb = UINT64_MAX;
	if (statvfs(l->tree->lib, &vfs) == 0)
		now->disk_free_mb = (uint64_t)vfs.f_bavail * vfs.f_frsize / MB;
	return 0;
}
