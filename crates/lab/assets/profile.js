// A click zooms to a frame. The search marks frames that contain the text, and shows their share.
const frames = [...document.querySelectorAll('#flame button')];
const of = frame => [Number(frame.dataset.left), Number(frame.dataset.width)];
for (const chosen of frames) chosen.addEventListener('click', () => {
  const [from, whole] = of(chosen);
  for (const frame of frames) {
    const [left, width] = of(frame);
    const start = Math.max(left, from), end = Math.min(left + width, from + whole);
    frame.hidden = end - start < whole / 1e4;
    frame.style.left = (start - from) / whole * 100 + '%';
    frame.style.width = (end - start) / whole * 100 + '%';
  }
});
document.getElementById('search').addEventListener('input', event => {
  const text = event.target.value.toLowerCase();
  let share = 0, end = -1;
  const hits = frames.filter(frame => frame.classList.toggle('found', text !== '' && frame.textContent.toLowerCase().includes(text)));
  // A frame within a counted one is already included.
  for (const [left, width] of hits.map(of).sort((one, other) => one[0] - other[0] || other[1] - one[1])) {
    if (left < end - 1e-6) continue;
    share += width;
    end = left + width;
  }
  document.getElementById('found').textContent = text === '' ? '' : share.toFixed(1) + ' % of the samples';
});
