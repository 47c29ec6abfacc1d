"""Which hosts may be contacted: none on this machine or in a private network unless the user allows it."""

import re

import pytest
from vlalign.extract.cli.extract import main
from vlalign.storage.common.errors import SettingError
from vlalign.storage.remote.addresses import AddressRefused, host_named, refuse_private


@pytest.mark.parametrize(
    ("number", "public"),
    [
        *[
            (number, True)
            for number in ("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8")
        ],
        *[
            (number, False)
            for number in (
                "127.0.0.1",
                "10.0.0.5",
                "172.16.0.1",
                "192.168.1.1",
                "169.254.169.254",
                "100.64.0.1",
                "0.0.0.0",
            )
        ],
        *[
            (number, False)
            for number in (
                "::1",
                "::",
                "fe80::1",
                "fe80::1%eth0",
                "fd00:ec2::254",
                "::ffff:10.0.0.1",
                "64:ff9b::7f00:1",
            )
        ],
        *[
            (number, False)
            for number in ("224.0.0.1", "255.255.255.255", "ff02::1", "2002:7f00:1::", "198.18.0.1", "240.0.0.1")
        ],
    ],
)
def test_which_ip_addresses_are_public(number, public):
    if public:
        refuse_private("h", [number], ())
        return
    with pytest.raises(AddressRefused, match=rf"^h \({re.escape(number)}\).*--allow-host h"):
        refuse_private("h", ["1.1.1.1", number], ())
    refuse_private("NAS.local", [number], ["nas.local"])


def test_a_host_is_normalised_and_a_url_refused(capsys):
    assert [host_named(text) for text in ("NAS.local", "10.0.0.5", "10.0.0.5:9000", "::1", "[::1]")] == [
        "nas.local",
        "10.0.0.5",
        "10.0.0.5",
        "::1",
        "::1",
    ]
    for text in ("http://10.0.0.5", "", "/x"):
        with pytest.raises(SettingError, match="allow_host"):
            host_named(text)
    assert main(["--dataset", "x", "--allow-host", "http://nas"]) == 2
    assert "--allow-host http://nas: " in capsys.readouterr().err
