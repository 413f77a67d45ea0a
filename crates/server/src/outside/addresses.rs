//! Where an address is: out in the world, on a network of somebody's own, or nowhere that anything may be sent to. What is not
//! known to be public is not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Out in the world.
    Public,
    /// On this machine, or on a network of somebody's own: for who tries something on their own machine.
    Private,
    /// Where nobody has a receiver: links, groups, examples, ways to wrap another address, and what clouds tell their machines.
    Never,
}

/// What clouds tell their machines, secrets among it, at addresses that look like others.
const METADATA_V4: [Ipv4Addr; 2] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254),
];

/// IPv4 networks that are not the world, with the number of bits they have in common.
const NETWORKS_V4: &[(Ipv4Addr, u32, Place)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, Place::Never),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Place::Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Place::Private),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Place::Private),
    (Ipv4Addr::new(169, 254, 0, 0), 16, Place::Never),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Place::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Place::Never),
    (Ipv4Addr::new(192, 0, 2, 0), 24, Place::Never),
    (Ipv4Addr::new(192, 31, 196, 0), 24, Place::Never),
    (Ipv4Addr::new(192, 52, 193, 0), 24, Place::Never),
    (Ipv4Addr::new(192, 88, 99, 0), 24, Place::Never),
    (Ipv4Addr::new(192, 168, 0, 0), 16, Place::Private),
    (Ipv4Addr::new(192, 175, 48, 0), 24, Place::Never),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Place::Never),
    (Ipv4Addr::new(198, 51, 100, 0), 24, Place::Never),
    (Ipv4Addr::new(203, 0, 113, 0), 24, Place::Never),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Place::Never),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Place::Never),
];

/// IPv6 networks within the world's that are not the world.
const NETWORKS_V6: &[(Ipv6Addr, u32)] = &[
    // The protocol's own: Teredo, benchmarking, ORCHID.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0x0db8, 0, 0, 0, 0, 0, 0), 32),
    // 6to4, which wraps an IPv4 address.
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x2620, 0x004f, 0x8000, 0, 0, 0, 0, 0), 48),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// The only part of IPv6 that is the world.
const WORLD_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
const OWN_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7);
const MAPPED: (Ipv6Addr, u32) = (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);
const TRANSLATED: (Ipv6Addr, u32) = (Ipv6Addr::new(0x0064, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

/// Where an address is.
pub fn place_of(address: IpAddr) -> Place {
    match address {
        IpAddr::V4(address) => of_v4(address),
        IpAddr::V6(address) => of_v6(address),
    }
}

fn of_v4(address: Ipv4Addr) -> Place {
    if METADATA_V4.contains(&address) {
        return Place::Never;
    }
    let within = |(network, bits, _): &&(Ipv4Addr, u32, Place)| {
        (address.to_bits() ^ network.to_bits()) >> (32 - bits) == 0
    };
    NETWORKS_V4.iter().find(within).map_or(Place::Public, |(.., place)| *place)
}

fn of_v6(address: Ipv6Addr) -> Place {
    let inner = || of_v4(Ipv4Addr::from_bits((address.to_bits() & 0xffff_ffff) as u32));
    if within(address, MAPPED) {
        return inner();
    }
    if within(address, TRANSLATED) {
        // A translator leads to the world, and must not lead back.
        return if inner() == Place::Public { Place::Public } else { Place::Never };
    }
    if address == Ipv6Addr::LOCALHOST {
        return Place::Private;
    }
    if within(address, OWN_V6) {
        return if METADATA_V6.contains(&address) { Place::Never } else { Place::Private };
    }
    let reserved = NETWORKS_V6.iter().any(|network| within(address, *network));
    if within(address, WORLD_V6) && !reserved { Place::Public } else { Place::Never }
}

fn within(address: Ipv6Addr, (network, bits): (Ipv6Addr, u32)) -> bool {
    (address.to_bits() ^ network.to_bits()) >> (128 - bits) == 0
}

#[cfg(test)]
mod tests {
    use super::{Place, place_of};

    const PUBLIC: &[&str] = &[
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "93.184.216.34",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.0.3.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "203.0.112.255",
        "203.0.114.0",
        "223.255.255.255",
        "168.63.129.15",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "2001:200::1",
        "2003::1",
        "2a00:1450::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
    ];
    const PRIVATE: &[&str] = &[
        "10.0.0.0",
        "10.255.255.255",
        "100.64.0.0",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.255",
        "172.16.0.0",
        "172.31.255.255",
        "192.168.0.0",
        "192.168.255.255",
        "::1",
        "fc00::",
        "fd12:3456::1",
        "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        "::ffff:127.0.0.1",
        "::ffff:10.1.2.3",
        "::ffff:192.168.1.1",
        "::ffff:100.64.0.1",
    ];
    const NEVER: &[&str] = &[
        // Nobody, links, metadata.
        "0.0.0.0",
        "0.1.2.3",
        "169.254.0.1",
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "::",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        // Protocols, examples, benchmarks, groups, the future.
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.0",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.255",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "ff02::1",
        "ff0e::1",
        "100::1",
        "2001:db8::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "3fff::1",
        "5f00::1",
        "4000::1",
        "e000::1",
        "1::",
        // IPv4 in other clothes.
        "::ffff:169.254.169.254",
        "::ffff:0.0.0.0",
        "::ffff:224.0.0.1",
        "::127.0.0.1",
        "::8.8.8.8",
        "::10.0.0.1",
        "::ffff:0:127.0.0.1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::",
        "2002:808:808::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "64:ff9b::127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b::100.64.0.1",
        "64:ff9b:1::8.8.8.8",
    ];

    #[test]
    fn every_address_is_where_the_registries_say() {
        for (addresses, place) in
            [(PUBLIC, Place::Public), (PRIVATE, Place::Private), (NEVER, Place::Never)]
        {
            for text in addresses {
                let address = text.parse().unwrap_or_else(|_| panic!("{text} is no address"));
                assert_eq!(place_of(address), place, "{text}");
            }
        }
    }

    #[test]
    fn what_the_library_knows_not_to_be_public_is_not() {
        // Every /16 of IPv4, and a step through IPv6.
        for number in 0..=u16::MAX {
            let [one, two] = number.to_be_bytes();
            let address = std::net::Ipv4Addr::new(one, two, 0, 1);
            let elsewhere = address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_unspecified();
            assert!(!elsewhere || place_of(address.into()) != Place::Public, "{address}");
            let address = std::net::Ipv6Addr::new(number, 0, 0, 0, 0, 0, 0, 1);
            let elsewhere = address.is_loopback()
                || address.is_multicast()
                || address.is_unique_local()
                || address.is_unicast_link_local()
                || address.is_unspecified();
            assert!(!elsewhere || place_of(address.into()) != Place::Public, "{address}");
        }
    }
}
