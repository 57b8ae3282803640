// Numbers as text: three digits and a unit, the same everywhere on the page.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const grouped = new Intl.NumberFormat("en");

/** Return a number with three significant digits, and at most three after the point. */
function digits(number) {
  return number >= 99.95 ? number.toFixed(0) : number >= 9.995 ? number.toFixed(1) : number.toFixed(2);
}

/** Return a count with its thousands apart. */
export function count(number) {
  return grouped.format(number);
}

/** Return a size in binary units. */
export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let unit = 0;
  while (number >= 1023.5 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit ? digits(number) : Math.round(number)} ${UNITS[unit]}`;
}

/** Return a length of time. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds <= 0) return "0 s";
  if (seconds < 0.0000995) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 0.0995) return `${digits(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${digits(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** Return a remaining time, which is too uncertain for decimals. */
export function remaining(seconds) {
  return seconds < 1 ? "a moment" : duration(seconds < 59.5 ? Math.round(seconds) : seconds).replace(/\.\d+/, "");
}

/** Return a share of the whole as per cent; 100 only when all is done. */
export function percent(part, whole) {
  if (!whole) return "0 %";
  const share = (100 * part) / whole;
  return `${part < whole ? Math.min(99, Math.floor(share)) : 100} %`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** Return a time of day, with the date if it was not today. */
export function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const date = new Date(seconds * 1000);
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : day.format(date);
}

/** Return "1 chunk" or "5 chunks". */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return the name of a computation for people. */
export function title(computation) {
  return computation.name || `computation ${computation.id.slice(0, 8)}`;
}
