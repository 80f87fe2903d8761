//! Fingerprints of audio: pairs of spectral peaks (Wang, An Industrial-Strength Audio Search
//! Algorithm, ISMIR 2003, 2.1-2.2).
//!
//! A peak is a place in the spectrogram that is louder than those around it; the loudest of each
//! frame count. Each is paired with the next ones in time; a pair's two frequencies and the time
//! between them are its fingerprint. Noise adds pairs and removes some, but the remaining ones are
//! exactly the same.

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use std::sync::Arc;

/// Samples of a frame, 128 ms, and from one frame to the next, 32 ms: a song's time steps.
pub const WINDOW: usize = 1024;
/// Samples of a time step.
pub const HOP: usize = 256;
/// Frequencies of a frame, the sample rate / [`WINDOW`] apart, below half of the sample rate.
const BINS: usize = 1 << BIN_BITS;
const BIN_BITS: u32 = 9;
/// Limit of the distance of a pair, in frames: it lies fewer frames apart.
const REACH: u32 = 1 << REACH_BITS;
const REACH_BITS: u32 = 6;
/// Bits of a fingerprint: two frequencies and the time between them.
pub const BITS: u32 = 2 * BIN_BITS + REACH_BITS;
/// The most peaks of a frame, and the most pairs of a peak. At most PEAKS x PAIRS fingerprints
/// begin in a frame.
const PEAKS: usize = 5;
const PAIRS: usize = 8;
/// Power of the quietest peak as a share of the loudest of its frame: 50 dB below it. Further
/// below, the transform's own rounding begins.
const QUIETEST: f32 = 1e-5;
/// Lowest frequency of a peak: below it are slow drifts of the recording.
const LOWEST_BIN: usize = 8;

/// Returns the most fingerprints of `samples` samples.
pub fn most_landmarks(samples: usize) -> usize {
    frames(samples) * PEAKS * PAIRS
}

fn frames(samples: usize) -> usize {
    (samples + HOP).saturating_sub(WINDOW) / HOP
}

/// A fingerprint, and the time at which it begins, in time steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landmark {
    /// The fingerprint, of [`BITS`] bits.
    pub fingerprint: u32,
    /// The time, in units of [`HOP`] samples from the start.
    pub time: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Peak {
    power: f32,
    bin: u32,
    frame: u32,
}

/// Calculator of fingerprints: a transform and its memory.
pub struct Fingerprinter {
    transform: Arc<dyn RealToComplex<f32>>,
    /// The Hann window.
    window: Vec<f32>,
    input: Vec<f32>,
    spectrum: Vec<Complex<f32>>,
    scratch: Vec<Complex<f32>>,
    /// The powers of three frames in turn.
    powers: [Vec<f32>; 3],
    peaks: Vec<Peak>,
}

impl std::fmt::Debug for Fingerprinter {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Fingerprinter").finish_non_exhaustive()
    }
}

impl Default for Fingerprinter {
    fn default() -> Fingerprinter {
        let transform = RealFftPlanner::<f32>::new().plan_fft_forward(WINDOW);
        let turn = std::f64::consts::TAU / WINDOW as f64;
        Fingerprinter {
            window: (0..WINDOW).map(|at| (0.5 - 0.5 * (turn * at as f64).cos()) as f32).collect(),
            input: transform.make_input_vec(),
            spectrum: transform.make_output_vec(),
            scratch: transform.make_scratch_vec(),
            powers: std::array::from_fn(|_| vec![0.0; BINS]),
            peaks: Vec::new(),
            transform,
        }
    }
}

impl Fingerprinter {
    /// Returns the fingerprints of `samples`, by time.
    pub fn landmarks(&mut self, samples: &[f32]) -> Vec<Landmark> {
        let frames = frames(samples.len());
        self.peaks.clear();
        self.powers.iter_mut().for_each(|frame| frame.fill(0.0));
        for frame in 0..=frames {
            let newest = frame % 3;
            if frame < frames {
                self.transform_frame(&samples[frame * HOP..][..WINDOW], newest);
            } else {
                self.powers[newest].fill(0.0);
            }
            if frame > 0 {
                self.pick_peaks(frame - 1);
            }
        }
        self.pair()
    }

    /// Computes the powers of one frame.
    fn transform_frame(&mut self, samples: &[f32], to: usize) {
        for ((input, sample), weight) in self.input.iter_mut().zip(samples).zip(&self.window) {
            *input = sample * weight;
        }
        // It fails only on buffers of the wrong length; these are its own.
        let done =
            self.transform.process_with_scratch(&mut self.input, &mut self.spectrum, &mut self.scratch);
        debug_assert!(done.is_ok(), "{done:?}");
        for (power, value) in self.powers[to].iter_mut().zip(&self.spectrum) {
            *power = value.norm_sqr();
        }
    }

    /// Appends the loudest peaks of `frame`; the powers of the frames around it are there.
    fn pick_peaks(&mut self, frame: usize) {
        let [before, here, after] =
            [frame + 2, frame, frame + 1].map(|frame| &self.powers[frame % 3][..BINS]);
        let quietest = here.iter().fold(0f32, |most, &power| most.max(power)) * QUIETEST;
        let (mut found, mut count) = ([Peak::default(); PEAKS], 0);
        for bin in LOWEST_BIN..BINS - 2 {
            let power = here[bin];
            // Most places fail here.
            if power <= here[bin - 1] || power < here[bin + 1] || power <= before[bin] || power < after[bin] {
                continue;
            }
            if power < quietest || power <= here[bin - 2] || power < here[bin + 2] {
                continue;
            }
            if count == PEAKS && power <= found[PEAKS - 1].power {
                continue;
            }
            // Insert, the loudest first.
            let mut at = if count < PEAKS { count } else { PEAKS - 1 };
            while at > 0 && found[at - 1].power < power {
                found[at] = found[at - 1];
                at -= 1;
            }
            found[at] = Peak { power, bin: bin as u32, frame: frame as u32 };
            count = (count + 1).min(PEAKS);
        }
        self.peaks.extend_from_slice(&found[..count]);
    }

    /// Pairs each peak with the next ones in time; of those at one time, with the loudest.
    fn pair(&self) -> Vec<Landmark> {
        let mut landmarks = Vec::with_capacity(self.peaks.len() * PAIRS);
        let mut next = 0;
        for anchor in &self.peaks {
            while self.peaks.get(next).is_some_and(|peak| peak.frame <= anchor.frame) {
                next += 1;
            }
            let near = self.peaks[next..].iter().take(PAIRS);
            landmarks.extend(near.take_while(|peak| peak.frame - anchor.frame < REACH).map(|peak| {
                Landmark {
                    fingerprint: anchor.bin << (BIN_BITS + REACH_BITS)
                        | peak.bin << REACH_BITS
                        | (peak.frame - anchor.frame),
                    time: anchor.frame,
                }
            }));
        }
        landmarks
    }
}

#[cfg(test)]
mod tests {
    use super::super::audio::{Song, add_noise};
    use super::*;
    use megapage_bench::random::Random;
    use std::collections::HashSet;

    /// Returns tones at `bins`, each from its frame on.
    fn tones(tones: &[(usize, usize)]) -> Vec<f32> {
        let mut samples = vec![0f32; 8000];
        for &(bin, frame) in tones {
            let turn = std::f64::consts::TAU * bin as f64 / WINDOW as f64;
            for (at, sample) in samples.iter_mut().enumerate().skip(frame * HOP) {
                let loud = (-0.002 * (at - frame * HOP) as f64).exp();
                *sample += (loud * (turn * at as f64).sin()) as f32;
            }
        }
        samples
    }

    #[test]
    fn two_tones_make_the_pair_that_was_played() {
        let mut fingerprinter = Fingerprinter::default();
        let landmarks = fingerprinter.landmarks(&tones(&[(50, 2), (90, 14)]));
        let found = |one: u32, other: u32| {
            landmarks.iter().any(|landmark| {
                let (first, second) = (landmark.fingerprint >> 15, landmark.fingerprint >> 6 & 511);
                let apart = landmark.fingerprint & 63;
                (first, second) == (one, other) && (11..=13).contains(&apart)
            })
        };
        assert!(found(50, 90), "{landmarks:?}");
        assert!(!found(90, 50));
    }

    #[test]
    fn a_second_of_music_has_about_a_thousand() {
        let mut fingerprinter = Fingerprinter::default();
        for number in 0..10 {
            let landmarks = fingerprinter.landmarks(&Song::new(number).samples(0, 8000));
            assert!((700..1600).contains(&landmarks.len()), "{number}: {}", landmarks.len());
            assert!(landmarks.len() <= most_landmarks(8000));
            assert!(landmarks.iter().all(|landmark| landmark.fingerprint < 1 << BITS && landmark.time < 28));
        }
    }

    #[test]
    fn noise_leaves_some_of_them_and_silence_has_none() {
        let mut fingerprinter = Fingerprinter::default();
        let clean = Song::new(3).samples(0, 8000);
        let of = |landmarks: Vec<Landmark>| -> HashSet<(u32, u32)> {
            landmarks.into_iter().map(|it| (it.fingerprint, it.time)).collect()
        };
        let expected = of(fingerprinter.landmarks(&clean));
        assert_eq!(of(fingerprinter.landmarks(&clean)), expected, "again the same");
        let mut noisy = clean;
        add_noise(&mut noisy, 0.5, &mut Random::new(1));
        let kept = of(fingerprinter.landmarks(&noisy)).intersection(&expected).count();
        assert!(kept >= 20, "{kept} of {}", expected.len());
        assert!(fingerprinter.landmarks(&[0.0; 8000]).is_empty());
        assert!(fingerprinter.landmarks(&[1.0; WINDOW - 1]).is_empty(), "no whole frame");
    }
}
