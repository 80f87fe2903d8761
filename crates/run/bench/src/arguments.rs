//! Readers of arguments, for clap's `value_parser`.

/// Reads a factor for sizes and work: above 0, at most `most`.
pub fn scale(most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text: &str| match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= most => Ok(scale),
        _ => Err(format!("a scale is a number above 0, at most {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_above_0_and_within_its_bound() {
        assert_eq!((scale(4.0)("4"), scale(1.0)("0.25")), (Ok(4.0), Ok(0.25)));
        for bad in ["0", "-1", "1.01", "NaN", "one", ""] {
            assert_eq!(scale(1.0)(bad), Err("a scale is a number above 0, at most 1".into()), "{bad}");
        }
    }
}
