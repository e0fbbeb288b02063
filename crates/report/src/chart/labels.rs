//! Where names at the ends of lines stand, so that none covers another.

/// Moves places, in ascending order, as little apart as they need between `top` and `bottom` to keep `distance`; less where
/// there is no room.
pub(crate) fn apart(places: &mut [f64], top: f64, bottom: f64, distance: f64) {
    let spacing = distance.min((bottom - top) / places.len().max(1) as f64);
    let mut lowest = top;
    for place in places.iter_mut() {
        *place = place.max(lowest);
        lowest = *place + spacing;
    }
    let mut highest = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(highest);
        highest = *place - spacing;
    }
}
