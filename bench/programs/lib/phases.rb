# The bench's protocol (protocol.py) for Ruby.
module Phases
  def self.send_text(text)
    out = ENV["BENCH_PHASES"]
    return print(text) unless out
    File.open(out, "w") { |file| file.write(text) }
    File.open(ENV.fetch("BENCH_GO")) { |file| file.gets }
  end

  # The set-up is done; what follows is measured.
  def self.steady = send_text("phase steady\n")

  # The measured work is done, and what it made is still there.
  def self.end(answer) = send_text("answer #{answer}\nphase end\n")
end
