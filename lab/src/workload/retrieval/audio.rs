//! Songs that exist only as rules: any stretch of any song can be synthesised at any time, and
//! sounds the same each time.
//!
//! A song has some voices. Each plays one note after the other: a fundamental with harmonics, which
//! decay from the onset on. Below lies noise, as in a recording.

use megapage_bench::random::Random;
use megapage_bench::random::mix;
use std::f64::consts::TAU;

/// Samples in a second.
pub const SAMPLE_RATE: u32 = 8000;

const VOICES: u64 = 6;
/// Partials of a note; a multiple of the numbers in a vector register.
const PARTIALS: usize = 8;
/// The highest partial, below half of the sample rate, in Hz.
const HIGHEST: f64 = 3900.0;
/// The lowest fundamental of all in Hz, and the notes of a voice, a semitone apart.
const LOWEST: f64 = 110.0;
const SEMITONES: usize = 25;
/// The amplitude of the noise below the music; that of a fundamental is about 1.
const NOISE_FLOOR: f32 = 0.02;

/// A song, by its number.
#[derive(Clone, Copy, Debug)]
pub struct Song(u64);

/// Notes of a voice throughout a song.
struct Voice {
    /// Samples from one onset to the next: 1/8 to 7/16 of a second.
    period: usize,
    /// The loss of amplitude of a note in a sample.
    decay: f64,
    /// The amplitude of each partial.
    timbre: [f64; PARTIALS],
    /// The fundamental of its lowest note, in Hz: no two songs are tuned alike.
    lowest: f64,
    /// The seed that selects the notes.
    seed: u64,
}

impl Song {
    /// Returns song `number`.
    pub fn new(number: u64) -> Song {
        Song(mix(number ^ 0x5365_6564_4d75_7369))
    }

    /// Returns `count` samples from sample `first` on, each about -10 to 10.
    pub fn samples(&self, first: usize, count: usize) -> Vec<f32> {
        let noise = (first..first + count).map(|at| NOISE_FLOOR * uniform(mix(self.0 ^ mix(at as u64))));
        let mut samples: Vec<f32> = noise.collect();
        if count > 0 {
            (0..VOICES).for_each(|number| Voice::of(self.0, number).add_to(&mut samples, first));
        }
        samples
    }
}

impl Voice {
    fn of(song: u64, number: u64) -> Voice {
        let seed = mix(song ^ mix(number + 1));
        let mut random = Random::new(seed);
        let rate = f64::from(SAMPLE_RATE);
        let period = 1000 + random.below(2500);
        let decay = (3.0 + 5.0 * share(random.bits())) / rate;
        let timbre = std::array::from_fn(|partial| (0.5 + share(random.bits())) / (partial + 1) as f64);
        let lowest = LOWEST * share(mix(song)).exp2();
        Voice { period, decay, timbre, lowest, seed }
    }

    /// Adds the notes that sound from sample `first` of the song on.
    fn add_to(&self, samples: &mut [f32], first: usize) {
        let end = first + samples.len();
        for note in first / self.period..=(end - 1) / self.period {
            let onset = note * self.period;
            let (start, stop) = (onset.max(first), (onset + self.period).min(end));
            self.play(note as u64, start - onset, &mut samples[start - first..stop - first]);
        }
    }

    /// Adds a note from `after` samples past its onset on: each partial is a phasor that turns and
    /// shrinks.
    fn play(&self, note: u64, after: usize, samples: &mut [f32]) {
        let pitch = Random::new(mix(self.seed ^ mix(note))).below(SEMITONES);
        let fundamental = self.lowest * (pitch as f64 / 12.0).exp2();
        let (mut re, mut im) = ([0f32; PARTIALS], [0f32; PARTIALS]);
        let (mut turn_re, mut turn_im) = ([0f32; PARTIALS], [0f32; PARTIALS]);
        for partial in 0..PARTIALS {
            let frequency = fundamental * (partial + 1) as f64;
            if frequency > HIGHEST {
                break;
            }
            let step = TAU * frequency / f64::from(SAMPLE_RATE);
            let amplitude = self.timbre[partial] * (-self.decay * after as f64).exp();
            let phase = (step * after as f64) % TAU;
            (re[partial], im[partial]) = ((amplitude * phase.cos()) as f32, (amplitude * phase.sin()) as f32);
            let shrink = (-self.decay).exp();
            (turn_re[partial], turn_im[partial]) =
                ((shrink * step.cos()) as f32, (shrink * step.sin()) as f32);
        }
        for sample in samples {
            *sample += im.iter().sum::<f32>();
            for at in 0..PARTIALS {
                let turned = re[at] * turn_re[at] - im[at] * turn_im[at];
                im[at] = re[at] * turn_im[at] + im[at] * turn_re[at];
                re[at] = turned;
            }
        }
    }
}

/// Returns 53 random bits as a number from 0 to 1.
fn share(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns random bits as a number from -1 to 1.
fn uniform(bits: u64) -> f32 {
    (2.0 * share(bits) - 1.0) as f32
}

/// Mixes `samples` with white noise, such that `noise`, from 0 to 1, is the noise's share of the
/// power; the whole has power 1.
pub fn add_noise(samples: &mut [f32], noise: f64, random: &mut Random) {
    let power = samples.iter().map(|&sample| f64::from(sample) * f64::from(sample)).sum::<f64>();
    let mean = (power / samples.len().max(1) as f64).max(f64::MIN_POSITIVE);
    let music = ((1.0 - noise) / mean).sqrt() as f32;
    // The sum of four uniform numbers, of variance 1/3 each, is nearly normal.
    let scale = (noise * 3.0 / 4.0).sqrt() as f32;
    for sample in samples {
        let sum: f32 = (0..4).map(|_| uniform(random.bits())).sum();
        *sample = music * *sample + scale * sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power(samples: &[f32]) -> f64 {
        samples.iter().map(|&sample| f64::from(sample) * f64::from(sample)).sum::<f64>()
            / samples.len() as f64
    }

    #[test]
    fn a_stretch_sounds_as_within_the_whole() {
        let song = Song::new(7);
        let whole = song.samples(0, 20_000);
        let stretch = song.samples(5_123, 8_000);
        for (at, (one, other)) in whole[5_123..].iter().zip(&stretch).enumerate() {
            // Phasors turn in single precision from the start of the stretch.
            assert!((one - other).abs() < 0.02, "{at}: {one} {other}");
        }
        assert!(song.samples(3, 0).is_empty());
    }

    #[test]
    fn songs_differ_and_are_bounded() {
        let (one, other) = (Song::new(1).samples(0, 8000), Song::new(2).samples(0, 8000));
        let difference: Vec<f32> = one.iter().zip(&other).map(|(one, other)| one - other).collect();
        assert!(power(&difference) > 0.5 * power(&one), "{} {}", power(&difference), power(&one));
        assert!(one.iter().all(|sample| sample.abs() < 30.0) && power(&one) > 0.01);
    }

    #[test]
    fn noise_has_its_share_of_the_power() {
        let clean = Song::new(1).samples(0, 80_000);
        for noise in [0.0, 0.5, 1.0] {
            let mut mixed = clean.clone();
            add_noise(&mut mixed, noise, &mut Random::new(1));
            assert!((power(&mixed) - 1.0).abs() < 0.05, "{noise}: {}", power(&mixed));
            let scale = ((1.0 - noise) / power(&clean)).sqrt() as f32;
            let rest: Vec<f32> =
                mixed.iter().zip(&clean).map(|(mixed, clean)| mixed - scale * clean).collect();
            assert!((power(&rest) - noise).abs() < 0.05, "{noise}: {}", power(&rest));
        }
    }
}
