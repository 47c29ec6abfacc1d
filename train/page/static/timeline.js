// The time line of a video: small frames, the score of the query over them, and the moment. The pointer or the arrow keys
// choose a second, whose frame is shown above it; a click or Enter plays from there.
import { clock, drawn, make, whileSeen } from "./common.js";
import { loadPicture, pictureAt, remarkOn } from "./pictures.js";

const NUM_FRAMES = 10;
const LONG_SECONDS = 60;  // of a video whose seconds are chosen by 1, not by 0.25
const WAIT_MS = 120;  // before the frame of a chosen second is asked for

export function timeline(moment, dataset, seek, signal) {
  const length = Math.max(moment.duration_seconds, 0.001), step = length > LONG_SECONDS ? 1 : 0.25;
  const at = (seconds) => pictureAt(dataset, moment.video_id, seconds);
  const percent = (seconds) => `${Math.min(Math.max(seconds / length, 0), 1) * 100}%`;
  const frames = make("div", { className: "frames" });
  const inside = make("div", { className: "inside" }), now = make("div", { className: "now" });
  inside.style.left = percent(moment.start_seconds);
  inside.style.width = percent(moment.end_seconds - moment.start_seconds);
  const chosen = make("figure", { className: "chosen", hidden: true }, make("img", { alt: "" }), make("figcaption"));
  const line = make("div", {
    className: "timeline", tabIndex: 0,
    attributes: {
      role: "slider", "aria-label": `Time of ${moment.video_id}; arrow keys choose a second, Enter plays from there`,
      "aria-valuemin": "0", "aria-valuemax": length.toFixed(1),
    },
  }, frames, inside, now, chosen);
  let second = moment.best_seconds, shown = null, timer = 0;
  const describe = () => { line.setAttribute("aria-valuenow", second.toFixed(2)); line.setAttribute("aria-valuetext", clock(second, 1)); };
  const place = () => {
    const [width, half] = [line.clientWidth, chosen.offsetWidth / 2];
    chosen.style.left = `${Math.min(Math.max(second / length * width, half), Math.max(width - half, half))}px`;
  };
  const choose = (wanted) => {
    second = Math.min(Math.max(Math.round(wanted / step) * step, 0), length);
    describe();
    chosen.hidden = false;
    const [image, words] = chosen.children;
    words.textContent = clock(second, 1);
    place();
    clearTimeout(timer);
    timer = setTimeout(() => {
      const asked = second;
      if (shown === asked) return;
      loadPicture(at(asked), signal, true).then((picture) => {
        if (asked !== second) return;
        [shown, image.src] = [asked, picture.address];
        const remark = remarkOn(picture, asked);
        words.textContent = remark ? `${clock(asked, 1)} (${remark})` : clock(asked, 1);
        place();
      }).catch(() => {});  // the second alone is shown
    }, WAIT_MS);
  };
  const hide = () => { clearTimeout(timer); chosen.hidden = true; };
  const secondAt = (event) => {
    const box = line.getBoundingClientRect();
    return (event.clientX - box.left) / box.width * length;
  };
  line.addEventListener("pointermove", (event) => choose(secondAt(event)));
  line.addEventListener("pointerleave", hide);
  line.addEventListener("blur", hide);
  const seekTo = (event) => { choose(secondAt(event)); seek(second); hide(); };
  line.addEventListener("click", seekTo);
  line.addEventListener("pointerup", (event) => { if (event.pointerType === "touch") seekTo(event); });  // after a drag
  line.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -step, ArrowRight: step, ArrowDown: -step, ArrowUp: step, PageDown: -10 * step, PageUp: 10 * step, Home: -Infinity, End: Infinity };
    if (event.key in moves) { event.preventDefault(); event.stopPropagation(); choose(second + moves[event.key]); }
    else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); seek(second); hide(); }
  });
  line.moveTo = (seconds) => { now.style.left = percent(seconds); };
  line.showScores = (curve) => {
    if (curve.scores.length < 2) return;
    frames.after(scores(curve, length));
    line.classList.add("scored");
  };
  describe();
  line.moveTo(moment.best_seconds);
  const images = Array.from({ length: NUM_FRAMES }, () => make("img", { alt: "" }));
  frames.append(...images);
  whileSeen(line, signal, (seen) => Promise.all(images.map((image, index) => loadPicture(at((index + 0.5) / NUM_FRAMES * length), seen)
    .then((picture) => { image.src = picture.address; }, (error) => { if (seen.aborted) throw error; }))));
  return line;
}

// The score of each window as a step of a curve, from the lowest to the highest of the video.
function scores(curve, length) {
  const low = Math.min(...curve.scores), high = Math.max(...curve.scores);
  const points = curve.scores.flatMap((score, index) => {
    const height = high > low ? (score - low) / (high - low) : 0.5;
    const start = curve.start_seconds[index], end = Math.min(curve.start_seconds[index + 1] ?? curve.end_seconds[index], curve.end_seconds[index]);
    return [[start, height], [end, height]];
  }).map(([seconds, height]) => `${(seconds / length * 100).toFixed(3)},${(10 - 9 * height).toFixed(3)}`);
  const svg = drawn("svg", { class: "scores", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(drawn("polygon", { points: `${points[0].split(",")[0]},10 ${points.join(" ")} ${points.at(-1).split(",")[0]},10` }));
  return svg;
}
