//! The authority over nodes: a key and a certificate that every agent pins, and what it certifies. A certificate says which
//! node it is for, and can be used for nothing but to be that node's agent.

use std::time::Duration;

use aws_lc_rs::rand;
use domain::ids::NodeId;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PublicKeyData as _, SanType, SerialNumber, date_time_ymd,
};
use store::installation_keys::StoredKey;

use super::{AUTHORITY, no_randomness, unreadable};
use crate::Error;

/// The name that agents expect in the gateway's certificate, wherever it listens.
pub const GATEWAY_NAME: &str = "gateway.berth.internal";

/// From when until when the authority itself is good. Its end is the end of every pinned copy, so it is far away.
const AUTHORITY_YEARS: (i32, i32) = (2025, 2075);

/// The longest request that is looked at.
const CSR_BYTES_MAX: usize = 16 * 1024;

/// A certificate for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// For the agent.
    pub pem: String,
    /// The same, as it is shown in handshakes.
    pub der: Vec<u8>,
}

/// The gateway's key and certificate. Deliberately without `Debug`.
pub struct GatewayCertificate {
    /// The certificate, DER.
    pub certificate: Vec<u8>,
    /// The private key, PKCS#8.
    pub key: Vec<u8>,
}

/// See the module.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// From when until when.
type Validity = (Timestamp, Timestamp);

impl Authority {
    /// A new authority, as it is kept.
    pub(super) fn generate() -> Result<StoredKey, Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|_| no_randomness())?;
        let mut params = CertificateParams::default();
        params.distinguished_name = named("Berth node authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = date_time_ymd(AUTHORITY_YEARS.0, 1, 1);
        params.not_after = date_time_ymd(AUTHORITY_YEARS.1, 1, 1);
        params.serial_number = Some(serial_number()?);
        let certificate = params.self_signed(&key).map_err(|error| uncertified(&error))?;
        Ok(StoredKey { private: key.serialize_der(), public: certificate.pem() })
    }

    /// The authority that was kept.
    pub(super) fn load(stored: &StoredKey) -> Result<Authority, Error> {
        // Without the parser's words: they might quote the key.
        let key =
            KeyPair::try_from(stored.private.as_slice()).map_err(|_| unreadable(AUTHORITY))?;
        let issuer = Issuer::from_ca_cert_pem(&stored.public, key);
        let issuer = issuer.map_err(|_| unreadable(AUTHORITY))?;
        Ok(Authority { issuer, pem: stored.public.clone() })
    }

    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    pub(super) fn issue_for_node(
        &self,
        node: NodeId,
        csr_pem: &str,
        validity: Validity,
    ) -> Result<Issued, Error> {
        if csr_pem.len() > CSR_BYTES_MAX {
            return Err(Error::invalid("/csr", "a request of at most 16 KiB is expected"));
        }
        // Reading it proves that whoever made it has the key. Nothing but the key is taken from it.
        let request = CertificateSigningRequestParams::from_pem(csr_pem).map_err(|_| {
            Error::invalid(
                "/csr",
                "a PEM certificate signing request, signed by its own key, is expected",
            )
        })?;
        if !is_accepted(&request.public_key) {
            return Err(Error::invalid("/csr", "a key on P-256 or an Ed25519 key is expected"));
        }
        let mut params = leaf(&format!("node {node}"), validity)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let uri = format!("spiffe://berth/node/{node}");
        let uri = uri.try_into().map_err(|error| uncertified(&error))?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        let certificate = params
            .signed_by(&request.public_key, &self.issuer)
            .map_err(|error| uncertified(&error))?;
        Ok(Issued { pem: certificate.pem(), der: certificate.der().to_vec() })
    }

    pub(super) fn issue_for_gateway(
        &self,
        validity: Validity,
    ) -> Result<GatewayCertificate, Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|_| no_randomness())?;
        let mut params = leaf("Berth node gateway", validity)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let local = std::net::Ipv4Addr::LOCALHOST.into();
        params.subject_alt_names = vec![SanType::IpAddress(local)];
        for name in [GATEWAY_NAME, "localhost"] {
            let name = name.try_into().map_err(|error| uncertified(&error))?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let certificate =
            params.signed_by(&key, &self.issuer).map_err(|error| uncertified(&error))?;
        Ok(GatewayCertificate { certificate: certificate.der().to_vec(), key: key.serialize_der() })
    }
}

/// The algorithm is read from the request's signature, so the key's length has to say the same.
fn is_accepted(key: &rcgen::PublicKey) -> bool {
    let (algorithm, length) = (key.algorithm(), key.der_bytes().len());
    (*algorithm == PKCS_ECDSA_P256_SHA256 && length == 65)
        || (*algorithm == PKCS_ED25519 && length == 32)
}

/// A certificate for somebody who certifies nobody.
fn leaf(name: &str, (not_before, not_after): Validity) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let epoch = date_time_ymd(1970, 1, 1);
    let since = |at: Timestamp| Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0));
    params.not_before = epoch + since(not_before);
    params.not_after = epoch + since(not_after);
    params.serial_number = Some(serial_number()?);
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Random: two certificates of one key must differ.
fn serial_number() -> Result<SerialNumber, Error> {
    let mut bytes = [0_u8; 16];
    rand::fill(&mut bytes).map_err(|_| no_randomness())?;
    // A serial number is positive, and has no leading zeros.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn uncertified(error: &rcgen::Error) -> Error {
    Error::Broken(format!("a certificate can't be made: {error}"))
}
