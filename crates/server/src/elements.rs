//! The elements of a DER value (X.690), in their order: for `ocsp` and `crl`, which need only some fields of large structures.

use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{self, Decode, Reader, SliceReader, Tag, TagNumber, Tagged};

/// The elements of a DER value, in their order.
pub struct Elements<'a>(SliceReader<'a>);

impl<'a> Elements<'a> {
    /// The elements in this content.
    ///
    /// # Errors
    /// It is too long.
    pub fn of(content: &'a [u8]) -> der::Result<Elements<'a>> {
        SliceReader::new(content).map(Elements)
    }

    /// Returns whether there are no more.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// The tag of the next element.
    pub fn peek(&self) -> Option<Tag> {
        Tag::peek(&self.0).ok()
    }

    /// The next element.
    ///
    /// # Errors
    /// It is malformed, as in the following functions.
    pub fn element(&mut self) -> der::Result<AnyRef<'a>> {
        self.0.decode()
    }

    /// Decodes the next element.
    ///
    /// # Errors
    /// It is of another type.
    pub fn decode<T: Decode<'a>>(&mut self) -> Result<T, T::Error> {
        self.0.decode()
    }

    /// The content of the next element, which must have this tag.
    ///
    /// # Errors
    /// It has another one.
    pub fn take(&mut self, tag: Tag) -> der::Result<&'a [u8]> {
        let element = self.element()?;
        element.tag().assert_eq(tag)?;
        Ok(element.value())
    }

    /// The elements of the next element, which must have this tag.
    ///
    /// # Errors
    /// It has another one.
    pub fn enter(&mut self, tag: Tag) -> der::Result<Elements<'a>> {
        Elements::of(self.take(tag)?)
    }

    /// Checks that there are no more.
    ///
    /// # Errors
    /// There are.
    pub fn finish(self) -> der::Result<()> {
        self.0.finish()
    }
}

/// The tag of a field `[number] EXPLICIT`.
pub fn explicit(number: u32) -> Tag {
    Tag::ContextSpecific { constructed: true, number: TagNumber(number) }
}
