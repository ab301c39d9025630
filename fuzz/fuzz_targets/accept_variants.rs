//! Accept, Accept-Language, Accept-Charset, Accept-Encoding, one per line: the choice is one of the variants,
//! acceptable on its own, and the same for every spelling of the fields.
#![no_main]

use amped_http::negotiate::{AcceptFields, Choice, Coding, Variant, choose_variant, normalise};

const VARIANTS: [Variant<'static>; 4] = [
    Variant { media_type: "text/html", language: Some("en"), charset: Some("utf-8"), codings: &[Coding::Identity] },
    Variant { media_type: "text/html", language: Some("fr-CH"), charset: None, codings: &[Coding::Gzip] },
    Variant {
        media_type: "text/plain; charset=utf-8",
        language: None,
        charset: Some("utf-8"),
        codings: &[Coding::Identity],
    },
    Variant { media_type: "image/png", language: None, charset: None, codings: &[Coding::Identity, Coding::Brotli] },
];

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let mut lines = text.split(|&byte| byte == b'\n');
    let fields: [Option<&[u8]>; 4] = std::array::from_fn(|_| lines.next());
    let normal = fields.map(|field| {
        field.map(|field| {
            let mut out = Vec::new();
            normalise(std::iter::once(field), &mut out);
            out
        })
    });
    let [accept, language, charset, encoding] = normal.each_ref().map(Option::as_deref);
    let wishes = AcceptFields { accept, language, charset, encoding };
    let chosen = choose_variant(&VARIANTS, &wishes);
    if let Choice::One(at) | Choice::Tie(at) = chosen {
        assert_eq!(choose_variant(&VARIANTS[at..=at], &wishes), Choice::One(0));
    }
    // In reverse order the same variant wins, unless another is as good.
    let mut backwards = VARIANTS;
    backwards.reverse();
    match (chosen, choose_variant(&backwards, &wishes)) {
        (Choice::One(at), Choice::One(other)) => assert_eq!(at + other, VARIANTS.len() - 1),
        (Choice::Tie(_), Choice::Tie(_)) | (Choice::Nothing, Choice::Nothing) => {}
        (one, other) => panic!("{one:?} and backwards {other:?}"),
    }
});
