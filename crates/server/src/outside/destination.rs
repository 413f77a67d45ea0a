//! Where a URL leads: whether it is of a form that something may be sent to, and whether every address of its name is. The look-up
//! is ours, and its answer is what is connected to, so that a name can't lead to one place when it is judged and to another later.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::time::timeout;

use super::addresses::{Place, place_of};

/// The longest URL.
const URL_BYTES_MAX: usize = 2_048;
/// How long a look-up may take.
const LOOK_UP: Duration = Duration::from_secs(5);
/// Below these ports are what machines serve to each other, mail and the like.
const PORT_MIN: u16 = 1_024;
const PORTS: [u16; 2] = [80, 443];

/// Why nothing is sent there. It says nothing of what is there, or whether anything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub &'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Refused {}

/// Of a name that leads nowhere and of one that leads within: who asks does not learn which.
pub(super) const NOT_PUBLIC: Refused = Refused("does not lead to public addresses only");

/// Who knows what a name leads to.
pub trait Names: Send + Sync {
    /// All its addresses.
    fn addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// What the machine it runs on knows.
#[derive(Clone, Copy, Debug)]
pub struct System;

impl Names for System {
    fn addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let found = async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        };
        found.boxed()
    }
}

/// Judges where something may go.
#[derive(Clone)]
pub struct Guard {
    names: Arc<dyn Names>,
    allow_private: bool,
}

impl Guard {
    /// One that asks `names`. With `allow_private` it lets through what stays on this machine or a network of one's own, and plain
    /// HTTP: for who tries something, and never where strangers name places.
    pub fn new(names: Arc<dyn Names>, allow_private: bool) -> Guard {
        Guard { names, allow_private }
    }

    /// A URL as it is kept, if it is of the right form. An address in it is judged at once; a name is not looked up.
    ///
    /// # Errors
    /// [`Refused`], with what is wrong with it.
    pub fn form(&self, text: &str) -> Result<Url, Refused> {
        if text.len() > URL_BYTES_MAX {
            return Err(Refused("is too long"));
        }
        let mut url = Url::parse(text).map_err(|_| Refused("is no URL"))?;
        match url.scheme() {
            "https" => {}
            "http" if self.allow_private => {}
            _ => return Err(Refused("must be an https URL")),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused("must not have a user or a password in it"));
        }
        let port = url.port_or_known_default().unwrap_or_default();
        if port < PORT_MIN && !PORTS.contains(&port) {
            return Err(Refused("must have the port 443, 80, or one from 1024 on"));
        }
        match address_in(&url) {
            Some(address) => self.allowed(address)?,
            None if url.host_str().unwrap_or_default().trim_end_matches('.').is_empty() => {
                return Err(Refused("names no host"));
            }
            None => {}
        }
        url.set_fragment(None);
        Ok(url)
    }

    /// The same, with its name looked up.
    ///
    /// # Errors
    /// [`Refused`], with what is wrong with it.
    pub async fn judge(&self, text: &str) -> Result<Url, Refused> {
        let url = self.form(text)?;
        if address_in(&url).is_none() {
            self.look_up(url.host_str().unwrap_or_default()).await?;
        }
        Ok(url)
    }

    /// Everything that a name leads to, if every address of it may be sent to: one that may not is enough to refuse it.
    ///
    /// # Errors
    /// [`Refused`] also when it leads nowhere.
    pub async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, Refused> {
        let found = timeout(LOOK_UP, self.names.addresses(name)).await;
        let found = found.ok().and_then(Result::ok).unwrap_or_default();
        if found.is_empty() {
            return Err(NOT_PUBLIC);
        }
        found.iter().try_for_each(|address| self.allowed(*address))?;
        Ok(found)
    }

    fn allowed(&self, address: IpAddr) -> Result<(), Refused> {
        match place_of(address) {
            Place::Public => Ok(()),
            Place::Private if self.allow_private => Ok(()),
            Place::Private | Place::Never => Err(NOT_PUBLIC),
        }
    }
}

/// Whoever connects asks this, and connects to what it answers.
impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let found = guard.look_up(name.as_str()).await?;
            // The port is that of the URL.
            let found: Addrs =
                Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(found)
        })
    }
}

/// The address that a URL has in the place of a name. However it was spelt, here it is the one spelling.
fn address_in(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io;
    use std::net::IpAddr;
    use std::sync::Arc;

    use futures::FutureExt as _;
    use futures::future::BoxFuture;

    use super::{Guard, NOT_PUBLIC, Names};

    struct Book(HashMap<&'static str, Vec<&'static str>>);

    impl Names for Book {
        fn addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
            let found = self.0.get(name.trim_end_matches('.')).cloned();
            let found = found.ok_or_else(|| io::Error::other("no such name"));
            let parsed = |texts: Vec<&str>| {
                texts.iter().map(|text| text.parse().unwrap_or_else(|_| panic!("{text}"))).collect()
            };
            async move { found.map(parsed) }.boxed()
        }
    }

    fn guard(allow_private: bool) -> Guard {
        let book = HashMap::from([
            ("good.example", vec!["93.184.216.34", "2606:2800:220:1::1"]),
            ("xn--bcher-kva.example", vec!["93.184.216.34"]),
            ("localhost", vec!["127.0.0.1", "::1"]),
            ("half.example", vec!["93.184.216.34", "10.0.0.1"]),
            ("metadata.google.internal", vec!["169.254.169.254"]),
            ("rebound.example", vec!["::ffff:169.254.169.254"]),
            ("empty.example", vec![]),
        ]);
        Guard::new(Arc::new(Book(book)), allow_private)
    }

    /// What it is kept as, or what is wrong with it.
    async fn judged(allow_private: bool, url: &str) -> Result<String, &'static str> {
        let judged = guard(allow_private).judge(url).await;
        judged.map(|url| url.to_string()).map_err(|refused| refused.0)
    }

    #[tokio::test]
    async fn what_leads_out_into_the_world_is_taken_in_one_spelling() {
        for (given, kept) in [
            ("https://good.example/hook", "https://good.example/hook"),
            ("HTTPS://GOOD.Example:443/Hook?a=b#c", "https://good.example/Hook?a=b"),
            ("https://good.example.:8443", "https://good.example.:8443/"),
            ("https://bücher.example/", "https://xn--bcher-kva.example/"),
            ("https://XN--BCHER-KVA.example/", "https://xn--bcher-kva.example/"),
            ("https://1.1.1.1/", "https://1.1.1.1/"),
            ("https://0x08080808/", "https://8.8.8.8/"),
            ("https://[2606:4700:4700::1111]:65535/", "https://[2606:4700:4700::1111]:65535/"),
            (" https://good.ex\tample/\n", "https://good.example/"),
        ] {
            assert_eq!(judged(false, given).await.as_deref(), Ok(kept), "{given}");
        }
    }

    #[tokio::test]
    async fn what_leads_within_is_refused_however_it_is_spelt() {
        for host in [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "017700000001",
            "127.0.0.1.",
            "1２7.0.0.1",
            "127。0。0。1",
            "0",
            "0.0.0.0",
            "[::]",
            "[::1]",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[::127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[fe80::1]",
            "[fd00:ec2::254]",
            "[fc00::1]",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.0.1",
            "100.64.0.1",
            "169.254.169.254",
            "0xa9fea9fe",
            "2852039166",
            "0251.0376.0251.0376",
            "[::ffff:a9fe:a9fe]",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "198.18.0.1",
            "localhost",
            "LOCALHOST",
            "localhost.",
            "ⓛocalhost",
            "metadata.google.internal",
            "rebound.example",
            "half.example",
            "empty.example",
            "nobody.example",
        ] {
            let told = judged(false, &format!("https://{host}/hook")).await;
            assert_eq!(told, Err(NOT_PUBLIC.0), "{host}");
        }
    }

    #[tokio::test]
    async fn what_is_no_place_to_send_to_is_refused_with_what_is_wrong() {
        let long = format!("https://good.example/{}", "a".repeat(2_048));
        for (given, wrong) in [
            ("http://good.example/", "https"),
            ("ftp://good.example/", "https"),
            ("file:///etc/passwd", "https"),
            ("gopher://good.example/", "https"),
            ("javascript:alert(1)", "https"),
            ("//good.example/", "no URL"),
            ("good.example/hook", "no URL"),
            ("https://", "no URL"),
            ("https:///", "no URL"),
            ("", "no URL"),
            ("https://user@good.example/", "user"),
            ("https://user:secret@good.example/", "user"),
            ("https://:secret@good.example/", "user"),
            ("https://good.example@127.0.0.1/", "user"),
            ("https://good.example:22/", "port"),
            ("https://good.example:0/", "port"),
            ("https://good.example:1023/", "port"),
            ("https://good.example:99999/", "no URL"),
            ("https://[::1/", "no URL"),
            ("https://[fe80::1%25eth0]/", "no URL"),
            ("https://1.2.3.256/", "no URL"),
            ("https://./", "host"),
            (long.as_str(), "long"),
        ] {
            let told = judged(false, given).await.expect_err(given);
            assert!(told.contains(wrong), "{given}: {told}");
        }
    }

    #[tokio::test]
    async fn who_tries_it_on_their_own_machine_may_and_even_they_get_no_metadata() {
        for url in [
            "http://127.0.0.1:8080/",
            "http://localhost:3000/",
            "https://10.0.0.1/",
            "http://half.example/",
        ] {
            assert!(judged(true, url).await.is_ok(), "{url}");
        }
        for url in [
            "http://169.254.169.254/",
            "http://metadata.google.internal/",
            "http://[fd00:ec2::254]/",
            "http://0.0.0.0:8080/",
            "http://[::]:8080/",
            "http://rebound.example/",
            "http://[fe80::1]/",
        ] {
            assert_eq!(judged(true, url).await, Err(NOT_PUBLIC.0), "{url}");
        }
        assert!(
            judged(true, "http://127.0.0.1:22/").await.is_err_and(|told| told.contains("port"))
        );
    }
}
