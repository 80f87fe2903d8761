/// Declares an enum, numbered from 0, with a name for each value: `ALL`, `name`, `parse`,
/// `Display`, and `FromStr`, whose error lists the names.
///
/// `FromStr` takes a name that is a page size in every form that [`PageSize`](crate::PageSize)
/// takes.
///
/// ```
/// megapage_units::named! {
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     enum Fruit { Apple = "apple", Pear = "pear" }
/// }
/// assert_eq!("pear".parse(), Ok(Fruit::Pear));
/// assert_eq!("kale".parse::<Fruit>(), Err("'kale' is none of apple, pear".to_string()));
/// assert_eq!(format!("{:>6}", Fruit::ALL[0]), " apple");
///
/// megapage_units::named! {
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     enum Pages { Huge = "2m" }
/// }
/// assert!(["2m", "2M", "2MB", "2MiB"].iter().all(|text| text.parse() == Ok(Pages::Huge)));
/// ```
#[macro_export]
macro_rules! named {
    (
        $(#[$type_attribute:meta])*
        $visible:vis enum $type:ident { $($(#[$attribute:meta])* $value:ident = $name:literal),+ $(,)? }
    ) => {
        $(#[$type_attribute])*
        $visible enum $type { $($(#[$attribute])* $value),+ }

        impl $type {
            /// All values, in the order of messages.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$value),+];

            /// Returns the name as on the command line, in variables and in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$value => $name),+
                }
            }

            /// Reads a name; `None` for any other text. Allocates nothing.
            pub fn parse(text: &[u8]) -> Option<$type> {
                $type::ALL.into_iter().find(|it| it.name().as_bytes() == text)
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                let names = [$($name),+];
                let by_size = || {
                    let size: $crate::PageSize = text.parse().ok()?;
                    $type::parse(size.to_string().as_bytes())
                };
                $type::parse(text.as_bytes())
                    .or_else(by_size)
                    .ok_or_else(|| format!("'{text}' is none of {}", names.join(", ")))
            }
        }
    };
}
