/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <unistd.h>

#include "box/claim.h"
#include "doctor.h"
#include "img/image.h"
#include "net/broker_conf.h"
#include "net/services.h"

/*
 * What a launch would be refused for before anything of it is made: files of
 * the configuration, read by what reads them then, and what admission says now.
 */

static void wrong(struct doctor *d, const struct err *why)
{
	d_finding(d, "configuration", SEV_ERROR, NULL, "%s", why->msg);
}

static void check_admission(struct doctor *d)
{
	struct admit_node n;
	struct err e = {0};

	if (claim_node(&d->tree, &n, &e) < 0) {
		wrong(d, &e);
		return;
	}
	if (admit_pressed(&n, &e) < 0)
		d_finding(d, "admission", SEV_ERROR, NULL,
			  "every launch is refused: %s", e.msg);
	if (n.now.draining)
		d_finding(d, "admission", SEV_WARNING, NULL,
			  "the node is being drained: it takes no new "
			  "sandboxes");
}

static void check_images(struct doctor *d)
{
	struct image_config images;
	struct err e = {0};

	if (image_config_load(d->tree.config, d->tree.lib, &images, &e) < 0)
		wrong(d, &e);
}

static void check_broker(struct doctor *d)
{
	struct broker_conf conf;
	char path[PATH_MAX];
	struct err e = {0};

	if (tree_path(path, NULL, "%s/broker.json", d->tree.config) < 0 ||
	    (access(path, F_OK) < 0 && errno == ENOENT))
		return;
	if (broker_conf_load(path, &conf, &e) < 0)
		wrong(d, &e);
	else
		broker_conf_done(&conf);
}

void check_services(struct doctor *d, const struct netconf *net)
{
	auto_services struct services *s = NULL;
	auto_json json_t *names = NULL;
	struct err e = {0};
	json_t *v;
	size_t i;

	if (services_open(d->tree.config, net, &s, &e) < 0 ||
	    services_names(s, &names, &e) < 0) {
		wrong(d, &e);
		return;
	}
	json_array_foreach(names, i, v) {
		auto_json json_t *about = NULL;

		if (services_about(s, json_string_value(v), &about, &e) < 0)
			wrong(d, &e);
	}
}

void check_config(struct doctor *d)
{
	check_admission(d);
	check_images(d);
	check_broker(d);
}
