# SPDX-License-Identifier: Apache-2.0
"""Where a remote client goes, who it is, and whom it accepts."""
from __future__ import annotations

import json
import os
import ssl
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from ._wire import split_address
from .errors import BadRequest, PolicyDenied


@dataclass
class RemoteSettings:
    """Where to, and who we are; files are PEM."""

    addresses: List[str]
    certificate: str
    key: str
    ca: str
    token: Optional[str] = field(default=None, repr=False)
    crl: Optional[str] = None
    peer: Optional[str] = None


def remote_settings(addresses: Union[None, str, Sequence[str]],
                    certificate: Optional[str], key: Optional[str],
                    ca: Optional[str], token: Optional[str],
                    config: Optional[str],
                    peer: Optional[str] = None) -> RemoteSettings:
    """What was given, else the environment, else the file."""
    env = os.environ
    path = config or env.get("DSEC_CLIENT")
    if not path and not certificate and not env.get("DSEC_CERT"):
        # What dsec-serve init has made.
        made = os.path.join(env.get("DSEC_TLS") or "/etc/dsec/serve",
                            "client.json")
        path = made if os.path.exists(made) else None
    said: Dict[str, Any] = {}
    if path:
        try:
            with open(path, encoding="utf-8") as f:
                said = json.load(f)
            if not isinstance(said, dict):
                raise ValueError("no object")
        except (OSError, ValueError) as e:
            raise BadRequest(f"cannot read {path}: {e}",
                             code="configuration") from None
    where = os.path.dirname(os.path.abspath(path)) if path else ""

    def pick(given: Optional[str], name: str, key: str,
             is_path: bool = True) -> Optional[str]:
        value = given or env.get(name)
        if not value and isinstance(said.get(key), str):
            value = os.path.join(where, said[key]) if is_path else said[key]
        return value

    found: Any = addresses or env.get("DSEC_SERVER") or said.get("addresses")
    if isinstance(found, str):
        found = [a.strip() for a in found.split(",") if a.strip()]
    if not found or not all(isinstance(a, str) for a in found):
        raise BadRequest("no address: give addresses=, DSEC_SERVER or a "
                         "config file; or local=True for this machine",
                         code="configuration")
    cert = pick(certificate, "DSEC_CERT", "certificate")
    secret = pick(key, "DSEC_KEY", "key")
    authority = pick(ca, "DSEC_CA", "ca")
    if not cert or not secret or not authority:
        missing = [name for name, value in (("certificate", cert),
                   ("key", secret), ("ca", authority)) if not value]
        raise BadRequest(f"no {', no '.join(missing)}: give them, DSEC_CERT, "
                         "DSEC_KEY and DSEC_CA, or a config file",
                         code="configuration")
    for address in found:
        split_address(address)
    return RemoteSettings(list(found), cert, secret, authority,
                          pick(token, "DSEC_TOKEN", "token", False),
                          pick(None, "DSEC_CRL", "crl"),
                          pick(peer, "DSEC_PEER", "peer", False))


def tls_context(s: RemoteSettings) -> ssl.SSLContext:
    """TLS 1.3, our certificate, and a server of our own authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # For this host, unless the caller knows whom to expect; and see
    # check_peer().
    context.check_hostname = s.peer is None
    context.verify_mode = ssl.CERT_REQUIRED
    what = s.ca
    try:
        context.load_verify_locations(s.ca)
        if s.crl:
            what = s.crl
            context.load_verify_locations(s.crl)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        what = f"{s.certificate} with {s.key}"
        context.load_cert_chain(s.certificate, s.key)
    except (OSError, ssl.SSLError) as e:
        raise BadRequest(f"cannot use {what}: {e}",
                         code="configuration") from None
    return context


def check_peer(cert: Optional[Mapping[str, Any]],
               wanted: Optional[str]) -> str:
    """The identity of a server: one URI, of a node or a control."""
    names: Any = (cert or {}).get("subjectAltName", ())
    uris = [value for kind, value in names
            if kind == "URI" and value.startswith("dsec://")]
    if len(uris) != 1 or not uris[0].startswith(("dsec://control/",
                                                 "dsec://node/")):
        raise PolicyDenied("the server's certificate is not that of a control "
                           f"or node: {', '.join(uris) or 'no identity'}")
    if wanted is not None and uris[0] != wanted:
        raise PolicyDenied(f"the server is {uris[0]}, not {wanted}")
    return str(uris[0])
